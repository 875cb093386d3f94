"""Out of memory: the batch is split into halves, and the update continues.

The loss of an update is a sum over its tokens divided by their number, however they are batched, so
a batch in two halves gives the same gradient except for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from transduce.data.batches.batch import Batch


def size(batch: Batch) -> int:
    """Tokens of both sides, padding included."""
    return batch.source_BS.numel() + (0 if batch.target_BT is None else batch.target_BT.numel())


@dataclass
class BatchSplitter:
    """Splits batches that are too large for the memory, and counts them."""

    limit: int | None = None
    """The size of the smallest batch that did not fit: others of this size are split in advance."""
    split: list[Batch] = field(default_factory=list)
    left_out: list[Batch] = field(default_factory=list)
    """Single pairs that ran out of memory."""

    def split_in_advance(self, batches: list[Batch]) -> list[Batch]:
        """The batches, with those split that would not fit; a single pair is always tried."""
        return [piece for batch in batches for piece in self._pieces(batch)]

    def _pieces(self, batch: Batch) -> list[Batch]:
        if self.limit is None or size(batch) < self.limit or len(batch) == 1:
            return [batch]
        self.split.append(batch)
        return self.split_in_advance(_halves(batch))

    def failed(self, batch: Batch) -> list[Batch]:
        """What to try instead of a batch that ran out of memory: its halves; nothing for a single
        pair.

        A single pair says nothing about batches: its memory grows with the square of its length.
        """
        if len(batch) == 1:
            self.left_out.append(batch)
            return []
        self.limit = min(size(batch), self.limit or size(batch))
        return self._pieces(batch)

    def take_counts(self) -> tuple[list[Batch], list[Batch]]:
        """The batches split and the pairs left out since the last call."""
        counts = self.split, self.left_out
        self.split, self.left_out = [], []
        return counts


def _halves(batch: Batch) -> list[Batch]:
    middle = len(batch) // 2
    return [batch.part(slice(0, middle)), batch.part(slice(middle, None))]
