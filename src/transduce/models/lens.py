"""Looking inside networks: their parts by name, what these compute, and gates that scale them.

`parts_of` lists what there is. A `Lens` records attention weights while everything else runs fused;
a `Recorder` also hidden states and the gates of recurrent cells. `Gates` scale heads, sublayers,
layers and source positions, or switch them off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.errors import ModelError
from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.decoders import RecurrentDecoder, TransformerDecoder
from transduce.models.encoder_output import EncoderOutput
from transduce.models.encoders import ConformerEncoder, RecurrentEncoder, TransformerEncoder
from transduce.models.hooks import view_of
from transduce.nn.attention.attention import Attention
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.gated_convolution import GatedConvolution
from transduce.nn.recurrent.cells import Cell, State
from transduce.nn.recurrent.gates import CELL, HIDDEN, gate_names, states_and_gates
from transduce.nn.recurrent.stack import Recurrent, reverse_sequences
from transduce.nn.residual import ResidualStream
from transduce.nn.watchable import GATES, WATCHES, Gate, Watch, Watchable

Kind = Literal["attention", "state", "gate", "logits", "next_token"]
LOGITS, NEXT_TOKEN = "logits", "next_token"
COPIED = "pointer.copied"  # how much of each token a decoder copied from the source
TO_TAGS = "decoder.tags.attention"  # of a decoder that reads the tags of a source apart
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


# -------------------------------------------------------------------------------- names and parts


def short_name(name: str) -> str:
    """`decoder.blocks.2.cross_attention` is also `decoder.2.cross`, `encoder.recurrent.cells.0`
    also `encoder.0`."""
    name = name.replace(".blocks.", ".").replace(".recurrent.cells.", ".")
    return name.removesuffix("_attention")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a part's name, or its short one, fits any of the patterns; * stands for any text."""
    short = short_name(name)
    return any(fnmatchcase(name, one) or fnmatchcase(short, one) for one in patterns)


def attentions(network: nn.Module) -> dict[str, Attention | MultiHeadAttention]:
    """The attention parts of a network by name, in the order of its layers."""
    kinds = (Attention, MultiHeadAttention)
    return {name: part for name, part in network.named_modules() if isinstance(part, kinds)}


class Part(NamedTuple):
    """Something that a lens can show."""

    name: str
    kind: Kind
    """attention: weights. state: hidden vectors. gate: of a recurrent cell, or how much was copied.
    logits: of every token of the vocabulary. next_token: the likeliest tokens at each step, with
    probabilities."""
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
    return "target" if re.match(r"(decoder|pointer)\b|logits$|next_token$", name) else "source"


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
        elif name == COPIED:
            found.append(Part(name, "gate", ("target", 1)))
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


# ------------------------------------------------------------------------------ attention weights


class Lens:
    """Records the attention weights_BHTS of those parts of a network that match the patterns.

        with Lens(network, "decoder.*.cross_attention") as lens:
            network(source_BS, lengths_B, target_BT)
        lens.weights["decoder.blocks.0.cross_attention"]

    Consecutive steps are joined along T; what did not exist yet at a step has weight zero. Parts
    that do not match never compute weights. Around a whole search it sees the rows of every step,
    which change as hypotheses come and go: `Model.lens` has the weights of each output. It sees
    what its own thread computes; others may use the network meanwhile, and compute no weights.

    Args:
        network: the network to look into.
        *patterns: names of its attention parts, with * for any text.
    """

    def __init__(self, network: nn.Module, *patterns: str) -> None:
        self.parts = {
            name: part
            for name, part in attentions(network).items()
            if matches(name, patterns or ("*",))
        }
        self._seen: dict[str, list[Tensor]] = {}
        self._before: Mapping[int, Watch] = {}

    @property
    def calls(self) -> dict[str, list[Tensor]]:
        """The weights_BHTS of every single call."""
        return self._seen

    @property
    def weights(self) -> dict[str, Tensor]:
        """Raises ModelError where the calls were of different numbers of rows."""
        return {name: _join(name, seen) for name, seen in self._seen.items()}

    def __enter__(self) -> Self:
        self._seen = {}
        self._before = WATCHES.get()
        own = {part.number: self._recorder(name) for name, part in self.parts.items()}
        WATCHES.set({**self._before, **own})
        return self

    def __exit__(self, *_: object) -> None:
        WATCHES.set(self._before)  # those of a lens around this one, or none

    def _recorder(self, name: str) -> Callable[[Tensor], None]:
        return lambda weights_BHTS: self._seen.setdefault(name, []).append(weights_BHTS.detach())


def _join(name: str, steps: list[Tensor]) -> Tensor:
    """One weights_BHTS of several; masked self-attention has more keys at each step."""
    rows = sorted({len(weights_BHTS) for weights_BHTS in steps})
    if len(rows) > 1:
        raise ModelError(
            f"the {len(steps)} calls of {name} had between {rows[0]} and {rows[-1]} rows, as in a "
            f"search, whose hypotheses come and go: `with model.lens(...)` around the run has the "
            f"weights of each output; lens.calls has those of every call"
        )
    longest = max(weights_BHTS.shape[3] for weights_BHTS in steps)
    padded = [F.pad(w_BHTS, (0, longest - w_BHTS.shape[3])) for w_BHTS in steps]
    return torch.cat(padded, dim=2)


# ------------------------------------------------------------------------------- states and cells


class Recorder:
    """While it is entered, keeps what the parts of these names compute.

        with Recorder(network, ["encoder.blocks.0", "decoder.blocks.0.cross_attention"]) as seen:
            seen.network(source_BS, lengths_B, target_BT)
        seen.found["encoder.blocks.0"]                      # [B, S, D]

    `network` is a view of the one that was given, for the recorder alone: other threads may use the
    network meanwhile. It is for one pass over whole sequences; of single steps it sees attention
    and cells alone.
    """

    def __init__(self, network: nn.Module, names: Iterable[str]) -> None:
        self.network: Any = view_of(network)
        self.names = list(names)
        there = attentions(self.network)
        modules = dict(self.network.named_modules())
        self._attention = [name for name in self.names if name in there]
        self._cells = {
            name: cast(Cell, module)
            for name, module in modules.items()
            if CELLS.fullmatch(name) and any(_is_of(name, one) for one in self.names)
        }
        self._modules = {
            name: modules[name]
            for name in self.names
            if name in modules and name not in there and name not in self._cells
        }
        self._states: dict[str, Tensor] = {}
        self._reads: dict[str, list[_Read]] = {}
        self._held = ExitStack()
        self._lens: Lens | None = None

    def __enter__(self) -> Self:
        self._states, self._reads = {}, {}
        self._lens = None
        if self._attention:
            self._lens = self._held.enter_context(Lens(self.network, *self._attention))
        for name, module in self._modules.items():
            self._held.callback(module.register_forward_hook(self._keep_output(name)).remove)
        for name, cell in self._cells.items():
            hook = cell.register_forward_pre_hook(self._keep_input(name), with_kwargs=True)
            self._held.callback(hook.remove)
            vars(cell)["step"] = self._keep_step(name, cell)
            self._held.callback(vars(cell).pop, "step")
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def found(self) -> dict[str, Tensor]:
        """By name: weights_BHTS of attention, else states or gates [B, positions, width]."""
        found = {} if self._lens is None else dict(self._lens.weights)
        found |= self._states
        for name, reads in self._reads.items():
            found |= self._of_cell(name, reads)
        return {name: found[name] for name in self.names if name in found}

    def _keep_output(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            self._states[name] = _states(output).detach()

        return keep

    def _keep_input(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
            given = dict(zip(("x_BSD", "state", "lengths_B"), inputs, strict=False)) | named
            read = _Read(given["x_BSD"], given.get("state"), given.get("lengths_B"))
            self._reads.setdefault(name, []).append(read)

        return keep

    def _keep_step(self, name: str, cell: Cell) -> Callable[[Tensor, State], tuple[Tensor, State]]:
        step = cell.step  # the class's

        def keep(x_BD: Tensor, state: State) -> tuple[Tensor, State]:
            self._reads.setdefault(name, []).append(_Read(x_BD.unsqueeze(1), state, None))
            return step(x_BD, state)

        return keep

    @torch.no_grad()
    def _of_cell(self, name: str, reads: list[_Read]) -> dict[str, Tensor]:
        """A cell's states and gates, in the order of the sequence whichever way it was read."""
        each = []
        for read in reads:
            inside = states_and_gates(self._cells[name], read.x_BSD, read.state)
            if self._reads_backward(name):
                inside = {k: reverse_sequences(v, read.lengths_B) for k, v in inside.items()}
            each.append(inside)
        joined = {key: torch.cat([one[key] for one in each], dim=1) for key in each[0]}
        return {
            name if key == HIDDEN else f"{name}.{key}": value_BSD
            for key, value_BSD in joined.items()
        }

    def _reads_backward(self, name: str) -> bool:
        stack_name, _, number = name.rpartition(".cells.")
        stack = self.network.get_submodule(stack_name)
        assert isinstance(stack, Recurrent)
        backward = stack.directions == 2 and int(number) % 2 == 1
        above = self.network.get_submodule(stack_name.rpartition(".")[0])
        return backward != (isinstance(above, RecurrentEncoder) and above.reverse)


class _Read(NamedTuple):
    """What a cell was given."""

    x_BSD: Tensor
    state: State | None
    lengths_B: Tensor | None


def _is_of(cell: str, name: str) -> bool:
    return name == cell or name.rpartition(".")[0] == cell


def _states(output: Any) -> Tensor:
    """The vectors in what a module gives."""
    if isinstance(output, EncoderOutput):
        return output.states_BSD
    if isinstance(output, ResidualStream):
        return output.settled()
    if isinstance(output, tuple):
        return _states(output[0])
    assert isinstance(output, Tensor)
    return output


# ------------------------------------------------------------------------------------------ gates


class Gates:
    """Scales parts of a network while it is entered.

        with Gates(network) as gates:
            gates.gate("decoder.2.cross", head=5, factor=0.0)
            network(source_BS, lengths_B, target_BT)

    Whatever calls the network's modules in this thread computes with the gates: teacher forcing,
    steps, search, scores, training; other threads do not. A gate that is set again replaces the one
    before; a factor of 1 takes it away.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._before: Mapping[int, Gate | None] = {}
        self._entered = False

    def __enter__(self) -> Self:
        self._before = GATES.get()
        self._entered = True
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        self._entered = False

    def clear(self) -> None:
        """Take all gates away that were set since it was entered."""
        GATES.set(self._before)

    def gate(
        self,
        pattern: str,
        *,
        head: int | None = None,
        position: int | None = None,
        factor: float = 0.0,
    ) -> None:
        """Multiply what the parts of this name compute by a factor.

        pattern: attention (`decoder.2.cross`), another sublayer (`encoder.0.feed_forward`), a layer
        (`decoder.2`: all its sublayers), or several (`decoder.*.cross`). head: this head alone, as
        if its columns of the output projection were multiplied. position: what attention reads at
        this position of the source, or of the target where it is the target's attention to itself.
        Without either it is all that a sublayer adds to the residual stream, bias included. Raises
        ModelError where there is no such part, head or position.
        """
        if not self._entered:
            raise ModelError("gates act inside `with`: enter the lens first")
        chosen = self._chosen(pattern, attention=head is not None or position is not None)
        for name, part in chosen.items():
            _check(name, part, head, position)
            gate = part.gate or Gate()
            if head is not None:
                gate = replace(gate, heads={**gate.heads, head: factor})
            if position is not None:
                gate = replace(gate, positions={**gate.positions, position: factor})
            if head is None and position is None:
                gate = replace(gate, output=factor)
            GATES.set({**GATES.get(), part.number: None if gate.is_open else gate})

    def _chosen(self, pattern: str, attention: bool) -> dict[str, Watchable]:
        there = gateable(self._network)
        if attention:
            there = {
                name: part for name, part in there.items() if name in attentions(self._network)
            }
        layers = {name: part for name, part in there.items() if matches(_layer(name), [pattern])}
        chosen = {name: part for name, part in there.items() if matches(name, [pattern])} or layers
        if not chosen:
            what = "attention part" if attention else "part"
            known = ", ".join(map(short_name, there)) or "none"
            raise ModelError(f"no {what} with a gate is called {pattern}; there are: {known}")
        return chosen


def gateable(network: nn.Module) -> dict[str, Watchable]:
    """The parts that a gate can be on, by name."""
    return {name: part for name, part in network.named_modules() if isinstance(part, Watchable)}


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def _check(name: str, part: Watchable, head: int | None, position: int | None) -> None:
    if head is not None:
        assert isinstance(part, Attention | MultiHeadAttention)
        heads = part.heads if isinstance(part, MultiHeadAttention) else 1
        if not 0 <= head < heads:
            raise ModelError(f"{name} has the heads 0 to {heads - 1}, and none is {head}")
    if position is not None and position < 0:
        raise ModelError(f"positions count from 0: there is none that is {position}")
