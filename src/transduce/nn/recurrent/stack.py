"""Recurrent networks: stacks of cells, unidirectional or bidirectional."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from transduce.nn.recurrent.cells import CELLS, Cell, State, zero_beyond
from transduce.nn.torch_private import has_forward_hooks


class Compiled(Protocol):
    """A stack in a layout of its own, for inference (see runtime/)."""

    def __call__(
        self, x_BSD: Tensor, state: Sequence[State] | None, lengths_B: Tensor | None
    ) -> tuple[Tensor, list[State]]: ...


class Recurrent(nn.Module):
    """A stack of recurrent cells, in one direction or in both.

    Layer l reads the states h_t^{l-1} of the layer below, and the output is that of the last
    layer. With `skip`, layer l reads the input x_t as well, and the output is a sum over all layers
    (Graves 2013). The state is a list over layers, and within a layer first forward, then backward.

        network = Recurrent("lstm", input_width=32, width=64, layers=2)
        output_BSD, state = network(torch.randn(8, 20, 32))      # [8, 20, 64]
        output_BD, state = network.step(torch.randn(8, 32), state)

    Args:
        cell: "elman", "gru", "lstm" or "lstm-peephole".
        input_width: width of the inputs.
        width: width of one cell.
        layers: number of layers.
        bidirectional: each layer has a forward and a backward cell, whose outputs are
            concatenated (Schuster 1997); the output then has twice the width.
        dropout: between layers.
        skip: the input reaches every layer, and every layer reaches the output.
    """

    def __init__(
        self,
        cell: str,
        input_width: int,
        width: int,
        layers: int,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
        skip: bool = False,
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise ValueError(f"There is no recurrent cell {cell!r}; choose one of {list(CELLS)}.")
        if layers < 1:
            raise ValueError(f"A recurrent stack needs at least one layer, not {layers}.")
        self.layers = layers
        self.directions = 2 if bidirectional else 1
        self.output_width = self.directions * width
        self.skip = skip
        self.dropout = nn.Dropout(dropout)
        above_width = self.output_width + (input_width if skip else 0)
        self.cells = nn.ModuleList(
            CELLS[cell](input_width if layer == 0 else above_width, width)
            for layer in range(layers)
            for _ in range(self.directions)
        )
        self.sum_over_layers = (
            SumOverLayers(self.output_width, layers, self.output_width) if skip else None
        )
        self.compiled: Compiled | None = None
        """Computes whole sequences in place of the cells, unless one of them has a hook."""

    def zeros(self, batch: int, like: Tensor) -> list[State]:
        """The state before the first step, on the device of `like`."""
        return [cast(Cell, cell).zeros(batch, like) for cell in self.cells]

    def forward(
        self, x_BSD: Tensor, state: Sequence[State] | None = None, lengths_B: Tensor | None = None
    ) -> tuple[Tensor, list[State]]:
        """Run whole sequences: outputs [B, S, output_width], and the state after each one's end.

        Beyond a sequence's length the outputs are zero, and nothing there changes any result.
        Raises ValueError when a length is negative or more than S.
        """
        if self.compiled is not None and not self._is_hooked():
            given = None if state is None else self._checked(state, x_BSD)
            return self.compiled(x_BSD, given, lengths_B)
        state = self._checked(state, x_BSD)
        new_state: list[State] = []
        outputs: list[Tensor] = []
        for layer in range(self.layers):
            input_BSD = self._input(x_BSD, outputs)
            joined: list[Tensor] = []
            for cell, start in self._cells_of(layer, state):
                if not joined:
                    h_BSD, end = cell(input_BSD, start, lengths_B)
                else:  # the backward cell, which starts at each sequence's own last step
                    h_BSD, end = cell(reverse_sequences(input_BSD, lengths_B), start, lengths_B)
                    h_BSD = reverse_sequences(h_BSD, lengths_B)
                joined.append(h_BSD)
                new_state.append(end)
            outputs.append(torch.cat(joined, dim=-1))
        output_BSE = self._output(outputs)
        if self.skip and lengths_B is not None:  # the bias of the sum reaches the padding too
            output_BSE = zero_beyond(output_BSE, lengths_B.to(x_BSD.device))
        return output_BSE, new_state

    def step(self, x_BD: Tensor, state: Sequence[State]) -> tuple[Tensor, list[State]]:
        """One time step: output [B, output_width], and the state to give to the next step."""
        if self.directions == 2:
            raise ValueError(
                "A bidirectional stack reads the future, so it cannot run step by step; "
                "build it with bidirectional=False."
            )
        state = self._checked(state, x_BD)
        new_state: list[State] = []
        outputs: list[Tensor] = []
        for layer in range(self.layers):
            [(cell, before)] = self._cells_of(layer, state)
            h_BD, after = cell.step(self._input(x_BD, outputs), before)
            outputs.append(h_BD)
            new_state.append(after)
        return self._output(outputs), new_state

    def _is_hooked(self) -> bool:
        return any(has_forward_hooks(one) for one in self.modules() if one is not self)

    def _input(self, x: Tensor, outputs: list[Tensor]) -> Tensor:
        if not outputs:
            return x
        below: Tensor = self.dropout(outputs[-1])
        return torch.cat([x, below], dim=-1) if self.skip else below

    def _output(self, outputs: list[Tensor]) -> Tensor:
        if self.sum_over_layers is None:
            return outputs[-1]
        summed: Tensor = self.sum_over_layers(outputs)
        return summed

    def _cells_of(self, layer: int, state: Sequence[State]) -> list[tuple[Cell, State]]:
        places = range(layer * self.directions, (layer + 1) * self.directions)
        return [(cast(Cell, self.cells[place]), state[place]) for place in places]

    def _checked(self, state: Sequence[State] | None, x: Tensor) -> Sequence[State]:
        if state is None:
            return self.zeros(len(x), x)
        if len(state) != len(self.cells):
            raise ValueError(
                f"This stack has {self.layers} layers in {self.directions} direction(s) and needs "
                f"{len(self.cells)} states, one for each; it was given {len(state)}."
            )
        return state


class SumOverLayers(nn.Module):
    """Output of a deep recurrent network with skip connections (Graves 2013): b_e + Σ_l
    W_{h^l e} h_t^l.
    """

    def __init__(self, width: int, layers: int, output_width: int) -> None:
        super().__init__()
        self.W_he = nn.Linear(layers * width, output_width)

    def forward(self, h_of_layers: Sequence[Tensor]) -> Tensor:
        """From the outputs of all layers, each [..., width], to one [..., output_width]."""
        # Concatenated, the W of the layers are one matrix, and the sum is one product.
        summed: Tensor = self.W_he(torch.cat(list(h_of_layers), dim=-1))
        return summed


def rotate_sequences(x_BSD: Tensor, by_B: Tensor) -> Tensor:
    """Row b of x turned round by so many places: what was at place by_B[b] is at the first."""
    place_S = torch.arange(x_BSD.shape[1], device=x_BSD.device)
    from_BS = (place_S + by_B[:, None]) % max(x_BSD.shape[1], 1)
    return x_BSD.gather(1, from_BS[:, :, None].expand_as(x_BSD))


def reverse_sequences(x: Tensor, lengths_B: Tensor | None = None) -> Tensor:
    """Turn each row of x, [B, S] or [B, S, D], round within its own length; padding stays put.

    For the backward direction, and for the reversed source of Sutskever 2014.
    Without lengths the whole row turns.
    """
    if lengths_B is None:
        return x.flip(1)
    batch, steps = x.shape[:2]
    lengths_B1 = lengths_B.to(x.device).unsqueeze(1)
    position_S = torch.arange(steps, device=x.device)
    from_BS = torch.where(position_S < lengths_B1, lengths_B1 - 1 - position_S, position_S)
    # One index over rows of B·S: its gradient is several times faster than that of x[rows, from].
    from_BS = from_BS + steps * torch.arange(batch, device=x.device).unsqueeze(1)
    return x.flatten(0, 1).index_select(0, from_BS.flatten()).view(x.shape)
