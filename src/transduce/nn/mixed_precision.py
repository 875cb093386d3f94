"""Mixed precision: float32 weights cast to the type of matrix products, all in one kernel.

Autocast casts each weight by itself, which on a GPU is hundreds of small kernels an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from transduce.nn.torch_private import copy_all

#: The copies that `cast` looks into: those of the innermost `CastCopies.active` block. This is
#: module-level state because layers receive their weight as a plain tensor; see `clear_casts`.
_ACTIVE: list[CastCopies] = []


class CastCopies:
    """A copy of each weight in another type, for example bfloat16; owned by the training loop."""

    def __init__(self, weights: Sequence[Tensor], dtype: torch.dtype) -> None:
        self._weights = list(weights)  # held, so that their ids stay theirs
        self._copies = [torch.empty_like(weight, dtype=dtype) for weight in self._weights]
        pairs = zip(self._weights, self._copies, strict=True)
        self._by_id = {id(weight): copy for weight, copy in pairs}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Copy the weights now; `cast` returns these copies until the block ends.

        The copies do not follow the weights: change weights only outside the block.
        """
        with torch.no_grad():
            copy_all(self._copies, self._weights)
        _ACTIVE.append(self)
        try:
            yield
        finally:
            if self in _ACTIVE:  # not after `clear_casts`
                _ACTIVE.remove(self)

    def copy_of(self, weight: Tensor) -> Tensor | None:
        """The copy of a weight; None of a tensor that is not among the weights."""
        return self._by_id.get(id(weight))


def cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weight in the given type: the active copy if there is one, else a new tensor."""
    copy = _ACTIVE[-1].copy_of(weight) if _ACTIVE else None
    return copy if copy is not None and copy.dtype == dtype else weight.to(dtype)


def clear_casts() -> None:
    """Deactivate all copies, as in a new process."""
    _ACTIVE.clear()
