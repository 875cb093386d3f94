"""Batches of bounded size, padding included."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence


def pack(indices: Sequence[int], sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices in batches of at most `budget`, padding included; a batch of one may be larger.

    Largest first, so that out of memory shows at once, not after an hour.
    """
    in_order = sorted(indices, key=lambda i: (-sizes[i], i))
    for cut in cuts([sizes[index] for index in in_order], budget):
        yield in_order[cut]


def pack_evenly(
    indices: Sequence[int],
    sizes: Sequence[int],
    several: int,
    minimum: int = 1,
    maximum: float = math.inf,
) -> Iterator[list[int]]:
    """As `pack`, into `several` batches of about the same size: into fewer if they were smaller
    than `minimum`, into more if, with padding, they were larger than `maximum`."""
    largest = sorted((sizes[index] for index in indices), reverse=True)
    total = sum(largest)
    budget = max(minimum, -(-total // several))
    while budget > maximum or sum(1 for _ in cuts(largest, budget)) > several:
        budget += -(-budget // 32)  # padding counts as well
        if budget > maximum:
            several += 1
            budget = max(minimum, -(-total // several))
    return pack(indices, sizes, budget)


def cuts(sizes: Sequence[int], budget: int) -> Iterator[slice]:
    """The batches of `pack`, for sizes in falling order."""
    start = 0
    while start < len(sizes):
        stop = start + max(1, budget // max(sizes[start], 1))
        yield slice(start, stop)
        start = stop
