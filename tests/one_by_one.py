"""The batches of training one by one, as updates of one batch each."""

from __future__ import annotations

from collections.abc import Iterator

from transduce.data.batches.batch import Batch
from transduce.data.batches.bucketing import Batches, Position


def one_by_one(batches: Batches, start: Position | None = None) -> Iterator[tuple[Batch, Position]]:
    """Each with the position after it."""
    for update in batches.updates(1, start):
        (batch,) = update.batches
        yield batch, update.position
