"""Whisper's weights under our names, and back.

Keys have no bias there; here it is zero. It adds the same to the scores of all positions, which
softmax does not see, so an export can leave out also one that was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.whisper.shape import Shape

Weights = dict[str, Tensor]
Get = Callable[..., Tensor]
"""A tensor by its name; Raises ModelError where it is missing or of another shape."""

# The bias of tokens that Whisper does not have. Their probability is 0 in float32; a lower bias
# would weigh in label smoothing.
BANNED_BIAS = -100.0

ENCODER_POSITIONS = "front.positions.positions.table_TD"
DECODER_POSITIONS = "decoder.embedding.positions.positions.table_TD"
TABLE = "decoder.embedding.table.weight"
CONVOLUTIONS = ("front.subsampling.first", "front.subsampling.second")
ENDS = ("weight", "bias")

Product = tuple[str, list[tuple[str, int]], int]
"""A linear layer: our name, theirs with their rows, one below the other, and columns."""


@dataclass(frozen=True)
class Names:
    """What a format calls the weights of Whisper."""

    dot: str
    """Between a layer and what it has."""
    positions: str
    convolution: str
    table: str
    head: str
    last_norm: str
    layer: str
    """Of a side and a number; what follows is within it."""
    attentions: dict[str, str]
    projections: Callable[[str, int], tuple[list[tuple[str, int]], str]]
    """Queries, keys and values of an attention, with their rows; and its output."""
    attention_norm: str
    feed_forward: tuple[str, str]
    feed_forward_norm: str
    of_norms: tuple[str, str] = ENDS
    """Weight and bias of a norm."""

    def products(self, shape: Shape) -> Iterator[Product]:
        D = shape.width
        for block, layer, attentions, hidden in self._layers(shape):
            for ours, theirs in attentions.items():
                into, out_of = self.projections(f"{layer}{theirs}", D)
                yield f"{block}.{ours}.in_projection", into, D
                yield f"{block}.{ours}.out_projection", [(out_of, D)], D
            expand, contract = (f"{layer}{name}" for name in self.feed_forward)
            yield f"{block}.feed_forward.expand", [(expand, hidden)], D
            yield f"{block}.feed_forward.contract", [(contract, D)], hidden

    def norms(self, shape: Shape) -> Iterator[tuple[str, str]]:
        """Our name of each norm, and theirs."""
        for side in ("encoder", "decoder"):
            yield f"{side}.norm", self.last_norm.format(side)
        for block, layer, attentions, _ in self._layers(shape):
            for ours, theirs in attentions.items():
                yield f"{block}.{ours}_residual.norm", f"{layer}{theirs}{self.attention_norm}"
            yield f"{block}.feed_forward_residual.norm", f"{layer}{self.feed_forward_norm}"

    def _layers(self, shape: Shape) -> Iterator[tuple[str, str, dict[str, str], int]]:
        """Each layer: its name here and there, its attentions, and its feed-forward width."""
        own = {"self_attention": self.attentions["self_attention"]}
        for number in range(shape.encoder_layers):
            theirs = self.layer.format("encoder", number)
            yield f"encoder.blocks.{number}", theirs, own, shape.encoder_feed_forward
        for number in range(shape.decoder_layers):
            theirs = self.layer.format("decoder", number)
            yield f"decoder.blocks.{number}", theirs, self.attentions, shape.decoder_feed_forward


def _apart(attention: str, width: int) -> tuple[list[tuple[str, int]], str]:
    return [(f"{attention}.{one}_proj", width) for one in "qkv"], f"{attention}.out_proj"


def _numbered(attention: str, width: int) -> tuple[list[tuple[str, int]], str]:
    parts = [(f"{attention}/linear_0", 3 * width)]
    if not attention.endswith("self_attention"):  # queries come from elsewhere
        parts = [(f"{attention}/linear_0", width), (f"{attention}/linear_1", 2 * width)]
    return parts, f"{attention}/linear_{len(parts)}"


HUGGINGFACE = Names(
    dot=".",
    positions="model.{}.embed_positions.weight",
    convolution="model.encoder.conv{}",
    table="model.decoder.embed_tokens.weight",
    head="proj_out.weight",
    last_norm="model.{}.layer_norm",
    layer="model.{}.layers.{}.",
    attentions={"self_attention": "self_attn", "cross_attention": "encoder_attn"},
    projections=_apart,
    attention_norm="_layer_norm",
    feed_forward=("fc1", "fc2"),
    feed_forward_norm="final_layer_norm",
)
CTRANSLATE2 = Names(
    dot="/",
    positions="{}/position_encodings/encodings",
    convolution="encoder/conv{}",
    table="decoder/embeddings/weight",
    head="decoder/projection/weight",
    last_norm="{}/layer_norm",
    layer="{}/layer_{}/",
    attentions={"self_attention": "self_attention", "cross_attention": "attention"},
    projections=_numbered,
    attention_norm="/layer_norm",
    feed_forward=("ffn/linear_0", "ffn/linear_1"),
    feed_forward_norm="ffn/layer_norm",
    of_norms=("gamma", "beta"),
)


def from_theirs(names: Names, get: Get, shape: Shape, order: Sequence[int]) -> Weights:
    """Our weights of those of a format. get(name, *shape)."""
    D = shape.width
    found = {
        ENCODER_POSITIONS: get(names.positions.format("encoder"), shape.encoder_positions, D),
        DECODER_POSITIONS: get(names.positions.format("decoder"), shape.decoder_positions, D),
    }
    for number, (ours, bands) in enumerate(zip(CONVOLUTIONS, (shape.mel_bands, D), strict=True), 1):
        theirs = names.convolution.format(number) + names.dot
        found[f"{ours}.weight"] = get(f"{theirs}weight", D, bands, 3)
        found[f"{ours}.bias"] = get(f"{theirs}bias", D)
    found |= _vocabulary(
        get(names.table, shape.vocabulary, D),
        None if shape.tied else get(names.head, shape.vocabulary, D),
        order,
    )
    for ours, parts, columns in names.products(shape):
        weights = [get(f"{name}{names.dot}weight", rows, columns) for name, rows in parts]
        biases = [
            get(f"{name}{names.dot}bias", rows) if has_bias(name) else weights[0].new_zeros(rows)
            for name, rows in parts
        ]
        found |= {f"{ours}.weight": torch.cat(weights), f"{ours}.bias": torch.cat(biases)}
    for ours, theirs in names.norms(shape):
        for end, their_end in zip(ENDS, names.of_norms, strict=True):
            found[f"{ours}.{end}"] = get(f"{theirs}{names.dot}{their_end}", D)
    return found


def to_theirs(names: Names, weights: Weights, shape: Shape, order: Sequence[int]) -> Weights:
    """The inverse of `from_theirs`."""
    found = {
        names.positions.format("encoder"): weights[ENCODER_POSITIONS],
        names.positions.format("decoder"): weights[DECODER_POSITIONS],
        names.table: in_their_order(weights[TABLE], order),
    }
    if not shape.tied:
        found[names.head] = in_their_order(weights["head.weight"], order)
    for end in ENDS:
        for number, ours in enumerate(CONVOLUTIONS, 1):
            theirs = names.convolution.format(number)
            found[f"{theirs}{names.dot}{end}"] = weights[f"{ours}.{end}"]
        for ours, parts, _ in names.products(shape):
            split = torch.split(weights[f"{ours}.{end}"], [rows for _, rows in parts])
            for (name, _), part in zip(parts, split, strict=True):
                if end == "weight" or has_bias(name):
                    found[f"{name}{names.dot}{end}"] = part
    for ours, theirs in names.norms(shape):
        for end, their_end in zip(ENDS, names.of_norms, strict=True):
            found[f"{theirs}{names.dot}{their_end}"] = weights[f"{ours}.{end}"]
    return {name: tensor.contiguous().clone() for name, tensor in found.items()}


def has_bias(name: str) -> bool:
    """Hugging Face's keys have none; CTranslate2 has zeros there."""
    return not name.endswith(".k_proj")


def _vocabulary(table_VD: Tensor, head_VD: Tensor | None, order: Sequence[int]) -> Weights:
    """The rows in our order, after those of PAD and UNKNOWN, which are never chosen."""
    bias_V = table_VD.new_zeros(len(order) + 2)
    bias_V[:2] = BANNED_BIAS
    rows = torch.tensor(order)
    none_2D = table_VD.new_zeros(2, table_VD.shape[1])
    found = {TABLE: torch.cat((none_2D, table_VD[rows])), "head.bias": bias_V}
    if head_VD is not None:
        found["head.weight"] = torch.cat((none_2D, head_VD[rows]))
    return found


def in_their_order(ours_VD: Tensor, order: Sequence[int]) -> Tensor:
    """The rows of Whisper's tokens in Whisper's order."""
    theirs_VD = torch.empty_like(ours_VD[2:])
    theirs_VD[torch.tensor(order)] = ours_VD[2:]
    return theirs_VD
