"""Small tensors that many kernels of a training pass need: seeds of dropout, and counters.

Making one is a kernel that takes as long as some of those that use it, and a pass of a Transformer
needs a hundred. Within `pass_buffers` they are parts of two tensors, made once for the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

ALIGNED = 16  # bytes: kernels are compiled once more for addresses of another kind
COUNT = 8192  # of each kind made at once; where they do not suffice, more are


class PassBuffers:
    """Parts of tensors that are made when they are first asked for."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, torch.device], Tensor] = {}

    def take(
        self, kind: str, count: int, device: torch.device, make: Callable[[int], Tensor]
    ) -> Tensor:
        """The next `count` numbers of a kind, of which `make` makes more."""
        left = self._left.get((kind, device))
        if left is None or len(left) < count:
            left = make(max(count, COUNT))
        aligned = ALIGNED // left.itemsize
        self._left[kind, device] = left[-(-count // aligned) * aligned :]
        return left[:count]


_ACTIVE: ContextVar[PassBuffers | None] = ContextVar("pass_buffers", default=None)


@contextmanager
def pass_buffers() -> Iterator[None]:
    """Within, seeds and counters are made together, for one forward and backward pass."""
    token = _ACTIVE.set(PassBuffers())
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def dropout_seed(device: torch.device) -> Tensor:
    """A seed [1] for a kernel's dropout mask, which the backward pass computes again.

    torch draws it, so that the state of its generator is all there is to save.
    """

    def draw(count: int) -> Tensor:
        return torch.randint(2**31, (count,), device=device)

    buffers = _ACTIVE.get()
    return draw(1) if buffers is None else buffers.take("seeds", 1, device, draw)


def counters(count: int, device: torch.device) -> Tensor | None:
    """So many zeros that a kernel of the pass may count with, if it leaves zeros behind; None where
    none were made together.

    To be asked for in the forward pass, as another thread does the backward pass.
    """

    def make(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32, device=device)

    buffers = _ACTIVE.get()
    return None if buffers is None else buffers.take("counters", count, device, make)
