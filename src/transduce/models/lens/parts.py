"""What there is to look at in a network: its parts by name, with their shapes."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from torch import nn

from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.decoders import RecurrentDecoder, TransformerDecoder
from transduce.models.encoders import ConformerEncoder, RecurrentEncoder, TransformerEncoder
from transduce.models.lens.attention import attentions
from transduce.models.lens.names import short_name
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.gated_convolution import GatedConvolution
from transduce.nn.recurrent.cells import Cell
from transduce.nn.recurrent.gates import CELL, gate_names
from transduce.nn.recurrent.stack import Recurrent

Kind = Literal["attention", "state", "gate", "logits", "next_token"]
LOGITS, NEXT_TOKEN = "logits", "next_token"
BLOCK = re.compile(r"(encoder|decoder)\.blocks\.\d+")
CELLS = re.compile(r"(encoder|decoder)\.recurrent\.cells\.\d+")
TO_SOURCE = re.compile(r"decoder\.(.*\.)?(cross_attention|attention)")
STACKS = (
    TransformerEncoder,
    ConformerEncoder,
    ConvolutionalEncoder,
    RecurrentEncoder,
    TransformerDecoder,
    ConvolutionalDecoder,
    RecurrentDecoder,
)


class Part(NamedTuple):
    """Something that a lens can show."""

    name: str
    kind: Kind
    """attention: weights. state: hidden vectors. gate: of a recurrent cell. logits: of every token
    of the vocabulary. next_token: the likeliest tokens at each step, with probabilities."""
    shape: tuple[int | str, ...]
    """Of one output; source and target stand for how many positions or tokens these have."""

    @property
    def short(self) -> str:
        """Another name for it."""
        return short_name(self.name)


def is_to_source(name: str) -> bool:
    """Whether the attention part of this name attends to the source."""
    return TO_SOURCE.fullmatch(name) is not None


def side_of(name: str) -> Literal["source", "target"]:
    """Along what a part goes: its rows are positions of the source, or of the target."""
    return "target" if re.match(r"decoder\b|logits$|next_token$", name) else "source"


def parts_of(network: nn.Module) -> list[Part]:
    """Everything in a network that a lens can show, from the input to the output."""
    found = [_attention(name, part) for name, part in attentions(network).items()]
    width_of_all = _width(network)
    for name, module in network.named_modules():
        if isinstance(module, Cell) and CELLS.fullmatch(name):
            side, width = side_of(name), module.width
            found.append(Part(name, "state", (side, width)))
            if module.state_parts > 1:
                found.append(Part(f"{name}.{CELL}", "state", (side, width)))
            names = gate_names(module)
            found += [Part(f"{name}.{gate}", "gate", (side, width)) for gate in names]
        elif _has_states(name, module):
            found.append(Part(name, "state", (side_of(name), width_of_all)))
    order = {name: place for place, (name, _) in enumerate(network.named_modules())}
    found.sort(key=lambda part: order.get(part.name, order.get(part.name.rpartition(".")[0], 0)))
    vocabulary = _vocabulary(network)
    if vocabulary:
        found.append(Part(LOGITS, "logits", ("target", vocabulary)))
        found.append(Part(NEXT_TOKEN, "next_token", ("target", "top")))
    return found


def _attention(name: str, part: nn.Module) -> Part:
    heads = part.heads if isinstance(part, MultiHeadAttention) else 1
    side = side_of(name)
    return Part(name, "attention", (heads, side, "source" if is_to_source(name) else side))


def _has_states(name: str, module: nn.Module) -> bool:
    embeds = name == "front" or (name == "decoder.embedding" and isinstance(module, TokenEmbedding))
    whole = name in ("encoder", "decoder") and isinstance(module, STACKS)
    return embeds or whole or BLOCK.fullmatch(name) is not None


def _width(network: nn.Module) -> int | str:
    """Of the hidden vectors between all layers; its name where only the front end knows it."""
    for name, module in network.named_modules():
        if not name.startswith(("encoder.", "decoder.")):
            continue
        if isinstance(module, MultiHeadAttention):
            return module.width
        if isinstance(module, Recurrent):
            return module.output_width
        if isinstance(module, GatedConvolution):
            return module.product.out_features // 2
    return "width"


def _vocabulary(network: nn.Module) -> int:
    head = getattr(network, "head", None)
    bias = getattr(head, "bias", None)
    return 0 if bias is None else len(bias)
