"""Records what named parts of a network compute in a pass: attention, states, gates of cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from transduce.models.encoders import RecurrentEncoder
from transduce.models.hooks import view_of
from transduce.models.lens.attention import Lens, attentions
from transduce.models.lens.parts import CELLS
from transduce.models.memory import Memory
from transduce.nn.recurrent.cells import Cell, State
from transduce.nn.recurrent.gates import HIDDEN, states_and_gates
from transduce.nn.recurrent.stack import Recurrent, reverse_sequences
from transduce.nn.residual import Stream


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    if isinstance(output, Memory):
        return output.states_BSD
    if isinstance(output, Stream):
        return output.settled()
    if isinstance(output, tuple):
        return _states(output[0])
    assert isinstance(output, Tensor)
    return output
