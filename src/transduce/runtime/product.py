"""A packed weight and its matrix products (GEMM) in C, int8 or float32."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.runtime.c_library import Library
from transduce.runtime.structures import Epilogue, Kernel, Weight

BLOCK = 16  # outputs in one block of the layout, four inputs at a time
PADDED = 64  # outputs and inputs are padded to a multiple of this
ROWS = 128  # of a weight that are summed at a time


class Product:
    """x Wᵀ + b with a weight packed for the C library; each row of x is independent of the others.

    `int8` takes a quantized weight, -127 to 127, and quantizes each row of the input at run time
    (dynamic quantization); `float32` takes a float32 weight.
    """

    def __init__(
        self, library: Library, weight: Weight, kept: tuple[Tensor, ...], kernel: Kernel
    ) -> None:
        """kept: the tensors that the weight points to, which must not be freed."""
        self.weight, self._kept = weight, kept
        self._address = ctypes.addressof(self.weight)
        self._library, self._kernel = library, kernel

    @classmethod
    def int8(
        cls,
        library: Library,
        levels_FD: Tensor,
        scale_F: Tensor,
        bias_F: Tensor | None,
        kernel: Kernel = Kernel.BEST,
        threads: int | None = None,
    ) -> Product:
        """threads: how many share a large product; by default as many as torch has now."""
        threads = torch.get_num_threads() if threads is None else threads
        outputs, inputs = levels_FD.shape
        more, deeper = -outputs % PADDED, -inputs % PADDED
        padded_FD = F.pad(levels_FD, (0, deeper, 0, more)) if more or deeper else levels_FD
        blocks = padded_FD.view(-1, BLOCK, (inputs + deeper) // 4, 4)
        kept = (
            blocks.transpose(1, 2).contiguous(),
            # Some rows at a time: torch casts all that it sums first.
            torch.cat(
                [rows.sum(dim=1, dtype=torch.int32) for rows in torch.split(padded_FD, ROWS)]
            ),
            F.pad(scale_F.float(), (0, more)).contiguous(),
            _padded_bias(bias_F, outputs, more),
        )
        weight = Weight(*(part.data_ptr() for part in kept), outputs, inputs, None, threads)
        return cls(library, weight, kept, kernel)

    @classmethod
    def float32(
        cls,
        library: Library,
        weight_FD: Tensor,
        bias_F: Tensor | None,
        threads: int | None = None,
    ) -> Product:
        """threads: how many share a large product; by default as many as torch has now."""
        threads = torch.get_num_threads() if threads is None else threads
        outputs, inputs = weight_FD.shape
        more = -outputs % PADDED
        weight_FD = weight_FD.float()
        padded_FD = F.pad(weight_FD, (0, 0, 0, more)) if more else weight_FD.contiguous()
        blocks = padded_FD.view(-1, BLOCK, inputs)
        numbers, bias_F = blocks.transpose(1, 2).contiguous(), _padded_bias(bias_F, outputs, more)
        weight = Weight(
            None, None, None, bias_F.data_ptr(), outputs, inputs, numbers.data_ptr(), threads
        )
        return cls(library, weight, (numbers, bias_F), Kernel.BEST)

    def __call__(self, x: Tensor, relu: bool = False, added: Tensor | None = None) -> Tensor:
        """The product in the type of x; then optionally ReLU, or the sum with another tensor."""
        inputs, outputs = self.weight.inputs, self.weight.outputs
        x_RD = x.float().contiguous()
        rows = x_RD.numel() // inputs
        y_RF = x_RD.new_empty(*x.shape[:-1], outputs)
        more_RF = None if added is None else added.float().contiguous()
        then = Epilogue.ADD if added is not None else Epilogue.RELU if relu else Epilogue.NOTHING
        workspace = x_RD.new_empty(self._library.product_workspace(rows, inputs), dtype=torch.uint8)
        self._library.multiply(
            self._address,
            x_RD.data_ptr(),
            rows,
            then,
            None if more_RF is None else more_RF.data_ptr(),
            y_RF.data_ptr(),
            workspace.data_ptr(),
            self._kernel,
        )
        return y_RF.to(x.dtype)


def _padded_bias(bias_F: Tensor | None, outputs: int, more: int) -> Tensor:
    return torch.zeros(outputs + more) if bias_F is None else F.pad(bias_F.float(), (0, more))
