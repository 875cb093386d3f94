"""Matrices as tiles, which newer GPUs (Hopper on) bring to a kernel by themselves.

Their tensor memory accelerator computes the addresses, for which every thread of a kernel would
otherwise need instructions and registers.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from transduce.nn.triton.start import early

ALIGNED = 16  # bytes: where matrices and their rows have to begin


def can_be_tiled(*matrices: Tensor) -> bool:
    """Whether the GPU has such an accelerator, and it can read these."""
    return all(
        early(matrix.device)["EARLY"]  # which the same GPUs can
        and matrix.data_ptr() % ALIGNED == 0
        and matrix.shape[-1] * matrix.itemsize % ALIGNED == 0
        for matrix in matrices
    )


def tiles(matrix_ND: Tensor, rows: int, columns: int) -> Any:
    """A contiguous matrix as tiles of this size; what is outside of it is 0."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(matrix_ND, [rows, columns])
