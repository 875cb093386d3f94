"""A sample of the training set, read by position: some pairs from places all over its index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from math import ceil

import numpy as np
from numpy.typing import NDArray

from transduce import recipe
from transduce.data.batches.mixing import shares_of
from transduce.data.index.corpus import PLACES, CorpusIndex
from transduce.data.text.pairs import Pair, ReadingCounts, resolved
from transduce.recipe import Mixture

SEED = 1  # not the recipe's: another run is to learn the same tokens
AT_ONCE = 64  # blocks that are fetched from a store at a time


@dataclass(frozen=True)
class IndexSample:
    """Iterated, its pairs, the same each time; memory holds those of one block."""

    index: CorpusIndex
    parts: tuple[tuple[NDArray[np.int64], float, int], ...]
    """Of each corpus of a list: all its blocks in the order in which they are read, the share of
    each that is taken, and the number of pairs after which reading ends."""

    def __len__(self) -> int:
        """Pairs at most: there are fewer where rows are skipped, and hardly any others left."""
        return sum(wanted for _, _, wanted in self.parts)

    def __iter__(self) -> Iterator[Pair]:
        for order, share, wanted in self.parts:
            yield from islice(chain.from_iterable(self._read(order, share)), wanted)

    def _read(self, order: NDArray[np.int64], share: float) -> Iterator[list[Pair]]:
        """The first pairs of each block; then the others, should so many rows be skipped that
        these are needed too."""
        for rest in (False, True) if share < 1 else (False,):
            for place in range(0, len(order), AT_ONCE):
                blocks = order[place : place + AT_ONCE].tolist()
                self.index.fetch(blocks)
                for block in blocks:
                    pairs = list(self.index.pairs(block, ReadingCounts()))
                    taken = ceil(share * len(pairs))
                    yield pairs[taken:] if rest else pairs[:taken]


def draw_sample(index: CorpusIndex, data: recipe.Data, size: int) -> IndexSample | None:
    """About `size` pairs of the training set; None where it has no more rows.

    They come from blocks in an order of their own, the same on every machine: whole blocks of a
    large sample, the beginnings of some more of a small one. Of a list, each corpus has the share
    that training draws of it, but no pair comes twice.
    """
    rows = [int(index.rows[part.start : part.stop].sum()) for part in index.parts]
    if sum(rows) <= size:
        return None
    corpus, _ = resolved(data.train, data.folder)
    weights = [one.weight for one in corpus.of] if isinstance(corpus, Mixture) else []
    if len(weights) != len(rows):  # read as one
        weights = [1.0] * len(rows)
    shares = shares_of(np.maximum(rows, 1).tolist(), weights, data.temperature)
    parts = []
    for part, (blocks, share) in enumerate(zip(index.parts, shares.tolist(), strict=True)):
        wanted = min(round(size * share), rows[part])
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence((SEED, part))))
        order = random.permutation(np.arange(blocks.start, blocks.stop))
        spread = int(index.rows[order[:PLACES]].sum())
        parts.append((order, min(1.0, wanted / max(spread, 1)), wanted))
    return IndexSample(index, tuple(parts))
