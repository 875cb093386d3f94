"""Too little memory for a batch: it is cut in halves, and the update goes on.

The loss of an update is a sum over its tokens divided by their number, whatever its batches are, so
a batch in two halves gives the same gradient but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from transduce.data.batches.batch import Batch

# How an allocator that is not torch's own for CUDA tells of it, in a plain RuntimeError.
TOLD = (
    "DefaultCPUAllocator",
    "bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory did not suffice, and nothing else.

    A CUDA graph whose recording fails for want of memory fails once more in being closed: what an
    error came upon counts as well.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(words in str(error) for words in TOLD):
        return True
    return error.__context__ is not None and out_of_memory(error.__context__)


def size(batch: Batch) -> int:
    """Places of both sides, padding counted."""
    return batch.source_BS.numel() + (0 if batch.target_BT is None else batch.target_BT.numel())


@dataclass
class MemoryShortage:
    """What is known of the memory's limit, and what was done about it since someone asked."""

    limit: int | None = None
    """The size of the smallest batch that did not fit: as large ones are split beforehand."""
    split: list[Batch] = field(default_factory=list)
    left_out: list[Batch] = field(default_factory=list)
    """Single pairs that did not fit."""

    def beforehand(self, batches: list[Batch]) -> list[Batch]:
        """The batches, those in halves that would not fit; a single pair is always tried."""
        return [piece for batch in batches for piece in self._pieces(batch)]

    def _pieces(self, batch: Batch) -> list[Batch]:
        if self.limit is None or size(batch) < self.limit or len(batch) == 1:
            return [batch]
        self.split.append(batch)
        return self.beforehand(_halves(batch))

    def failed(self, batch: Batch) -> list[Batch]:
        """What to try in place of a batch that did not fit: its halves; nothing of a single pair.

        A single pair says nothing about batches: its memory grows with the square of its length.
        """
        if len(batch) == 1:
            self.left_out.append(batch)
            return []
        self.limit = min(size(batch), self.limit or size(batch))
        return self._pieces(batch)

    def asked(self) -> tuple[list[Batch], list[Batch]]:
        """The batches split and the pairs left out since the last time this was asked."""
        told = self.split, self.left_out
        self.split, self.left_out = [], []
        return told


def _halves(batch: Batch) -> list[Batch]:
    middle = len(batch) // 2
    return [batch.part(slice(0, middle)), batch.part(slice(middle, None))]
