"""A stack of recurrent cells in C: whole sequences in one library call; see c/recurrent.c."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.nn.recurrent import cells
from transduce.nn.recurrent.stack import Recurrent
from transduce.runtime import structures
from transduce.runtime.c_library import Library
from transduce.runtime.product import Product
from transduce.runtime.structures import CELLS, Cell, Kernel, Sequences, Weight

KINDS: dict[type[cells.Cell], str] = {made: name for name, made in cells.CELLS.items()}


def is_supported(stack: Recurrent) -> bool:
    """Whether the C library has cells of this kind, and the weights are float32."""
    known = all(type(cell) in KINDS for cell in stack.cells)
    return known and all(one.dtype == torch.float32 for one in stack.parameters())


class Weights:
    """Float32 weights as the C library reads them, and the tensors that they point to."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._kept: list[object] = []

    def linear(self, layer: nn.Linear | None) -> Weight:
        """Without outputs where there is no layer."""
        return Weight() if layer is None else self.product(layer.weight, layer.bias)

    def product(self, weight_FD: Tensor, bias_F: Tensor | None) -> Weight:
        bias_F = None if bias_F is None else bias_F.detach()
        product = Product.float32(self._library, weight_FD.detach(), bias_F)
        self._kept.append(product)
        return product.weight

    def keep(self, tensor: Tensor) -> int:
        """The address of a tensor."""
        kept = tensor.detach().float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


class CompiledRecurrent:
    """Computes a stack in inference, and in one order of sums: the same as in a browser."""

    def __init__(self, library: Library, stack: Recurrent) -> None:
        self._library, self._weights = library, Weights(library)
        first = stack.cells[0]
        assert isinstance(first, cells.Cell)
        self._inputs, self._width, self._parts = first.input_width, first.width, first.state_parts
        self._directions = stack.directions
        made = [self._cell(cell) for cell in stack.cells]
        summed = stack.sum_over_layers
        self.structure = structures.Recurrent(
            (Cell * len(made))(*made),
            stack.layers,
            stack.directions,
            first.width,
            CELLS.index(KINDS[type(first)]),
            stack.skip,
            self._weights.linear(None if summed is None else summed.W_he),
            Kernel.BEST,
        )
        self._address = ctypes.addressof(self.structure)
        self._cells = len(made)

    def __call__(
        self, x_BSD: Tensor, state: Sequence[cells.State] | None, lengths_B: Tensor | None
    ) -> tuple[Tensor, list[cells.State]]:
        """As Recurrent.forward."""
        B, S, inputs = x_BSD.shape
        assert inputs == self._inputs  # C reads so many
        if lengths_B is None:
            lengths_B = torch.full((B,), S)
        cells.check_lengths(x_BSD, lengths_B)
        x_BSD, lengths_B = x_BSD.float().contiguous(), lengths_B.long().contiguous()
        shape = (self._cells, B, self._width)
        if state is None:
            parts = [x_BSD.new_zeros(shape) for _ in range(self._parts)]
        else:
            parts = [torch.stack(every).float() for every in zip(*state, strict=True)]
            assert all(part.shape == shape for part in parts)
        outputs_BSE = x_BSD.new_empty(B, S, self._directions * self._width)
        wanted = self._library.sequences_workspace(self._address, int(lengths_B.sum()), B, S)
        workspace = x_BSD.new_empty(wanted, dtype=torch.uint8)
        call = Sequences(
            sequences=B,
            longest=S,
            x=x_BSD.data_ptr(),
            lengths=lengths_B.data_ptr(),
            outputs=outputs_BSE.data_ptr(),
            h=parts[0].data_ptr(),
            c=parts[1].data_ptr() if self._parts > 1 else None,
            workspace=workspace.data_ptr(),
        )
        self._library.read_sequences(self._address, ctypes.addressof(call))
        return outputs_BSE, list(zip(*(part.unbind() for part in parts), strict=True))

    def _cell(self, cell: nn.Module) -> Cell:
        make = self._weights
        if isinstance(cell, cells.PeepholeLSTM):
            peepholes = torch.stack([cell.W_ci, cell.W_cf, cell.W_co])
            return Cell(make.linear(cell.W_x), make.linear(cell.W_h), make.keep(peepholes))
        assert isinstance(cell, cells.KernelCell)
        W_x, W_h, bias_x, bias_h = cell.weights()
        return Cell(make.product(W_x, bias_x), make.product(W_h, bias_h), None)
