"""What a block keeps of the past, so that it can go on where it was: KV cache and convolution
cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Past(NamedTuple):
    """The past of one block."""

    keys_BP2D: Tensor
    """Keys, without positions, and values of self-attention, side by side."""
    frames_BPD: Tensor | None = None
    """The last frames of a causal convolution."""


class Resumed:
    """A sublayer that also gives what it keeps, as one that does not: a residual connection takes
    only the output."""

    kept: Tensor

    def of(self, sublayer: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Callable[[Tensor], Tensor]:
        def output(x_BTD: Tensor) -> Tensor:
            y_BTD, self.kept = sublayer(x_BTD)
            return y_BTD

        return output
