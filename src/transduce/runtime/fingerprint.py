"""Fingerprint of a network's weights: detects any change, however it was made."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transduce.nn.torch_private import kept_tensors


class Fingerprint:
    """A checksum of weights: the product of each row with a random vector; biases and norms as they
    are.

    torch's version counters miss fused optimizers, `weight.data`, numpy and
    inference mode, so the values themselves are read, once. A change is missed only if float32
    rounds it away in a sum over a row. Replacing a module or a weight by another object counts as a
    change as well.
    """

    def __init__(self, network: nn.Module) -> None:
        self._parts, tensors = _parts(network)
        self._vectors: dict[tuple[int, torch.dtype], Tensor] = {}
        self._values = self._read(tensors)

    def follow(self, network: nn.Module) -> None:
        """Some parameters were replaced by others of the same values (unloaded.py)."""
        self._parts, _ = _parts(network)

    def fits(self, network: nn.Module) -> bool:
        """Whether nothing has changed since; false if a weight is NaN."""
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
        """A random vector without entries near zero, so that each element of a row counts."""
        key = (width, dtype)
        if key not in self._vectors:
            draw = torch.rand(width, generator=torch.Generator().manual_seed(width)) * 2 - 1
            self._vectors[key] = (draw + draw.sign() * 0.5).to(dtype)
        return self._vectors[key]


def _parts(network: nn.Module) -> tuple[list[object], list[Tensor]]:
    """Modules and their tensors in order, and the tensors alone; without computed (non-persistent)
    buffers.
    """
    parts: list[object] = []
    tensors: list[Tensor] = []
    for module in network.modules():
        parts.append(module)
        tensors += kept_tensors(module)
    return [*parts, *tensors], tensors
