"""Whether a network's weights are still what they were, whoever may have changed them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transduce.nn.torch_private import kept_tensors


class Fingerprint:
    """The product of each row of each weight with a random vector; vectors as they are.

    torch's own version counters say nothing of fused optimizers, of `weight.data`, of numpy and of
    inference mode, so the numbers themselves are read, once. What two networks differ in without a
    difference here is what float32 rounds away in a sum over a row. Modules and weights that are
    not the very same objects are a change as well.
    """

    def __init__(self, network: nn.Module) -> None:
        self._parts, tensors = _parts(network)
        self._vectors: dict[tuple[int, torch.dtype], Tensor] = {}
        self._values = self._read(tensors)

    def fits(self, network: nn.Module) -> bool:
        """Whether nothing has changed since; never where a weight is NaN."""
        parts, tensors = _parts(network)
        if len(parts) != len(self._parts):
            return False
        same = all(one is other for one, other in zip(parts, self._parts, strict=True))
        return same and torch.equal(self._read(tensors), self._values)

    def _read(self, tensors: list[Tensor]) -> Tensor:
        return torch.cat([self._row_values(tensor.detach()) for tensor in tensors])

    def _row_values(self, tensor: Tensor) -> Tensor:
        if tensor.dim() < 2:
            return tensor.flatten()
        rows_FD = tensor.flatten(1)
        if rows_FD.dtype not in (torch.float32, torch.float64):
            rows_FD = rows_FD.float()
        return rows_FD @ self._vector(rows_FD.shape[1], rows_FD.dtype)

    def _vector(self, width: int, dtype: torch.dtype) -> Tensor:
        """No entry near zero: each number of a row counts."""
        key = (width, dtype)
        if key not in self._vectors:
            draw = torch.rand(width, generator=torch.Generator().manual_seed(width)) * 2 - 1
            self._vectors[key] = (draw + draw.sign() * 0.5).to(dtype)
        return self._vectors[key]


def _parts(network: nn.Module) -> tuple[list[object], list[Tensor]]:
    """Modules and their tensors in order, and the tensors alone; tables that are computed, not."""
    parts: list[object] = []
    tensors: list[Tensor] = []
    for module in network.modules():
        parts.append(module)
        tensors += kept_tensors(module)
    return [*parts, *tensors], tensors
