"""Bucketing: batches of similar lengths, in an order that seed and position determine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import CDLL, c_int64, c_void_p
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from transduce.data.batches.batch import Batch, batch_of_rows
from transduce.data.batches.blocks import cut_anywhere
from transduce.data.batches.mixing import Mix
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Encoded, check_some_left
from transduce.errors import DataError
from transduce.shared_library import declared, is_disabled

T = TypeVar("T")


@dataclass(frozen=True)
class Position:
    """The position in the data: three numbers that a checkpoint stores, to resume from."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


@dataclass(frozen=True)
class RankBatches:
    """The batches of one rank in one update, and what it must know of the whole update."""

    batches: list[Batch]
    tokens: int
    """Predicted tokens in the batches of all ranks."""
    position: Position
    """The position after the update's last batch."""


class Batches:
    """An infinite iterator over batches of a corpus, epoch after epoch.

    A batch holds at most `tokens` tokens on its larger side, special tokens and padding included; a
    pair longer than that is a batch by itself. The order depends only on seed, epoch and pool, so
    it is the same on every run, machine and world size.

    With `block`, the corpus is running text, cut into blocks of so many tokens, differently in each
    epoch; with `vary`, each epoch reads an augmented version of it; with `mix`, an epoch draws
    some pairs more often than others.
    """

    def __init__(
        self,
        corpus: Encoded | StreamingDataset,
        tokens: int = 4096,
        seed: int = 1,
        ends: bool = True,
        block: int | None = None,
        vary: Callable[[Encoded, np.random.Generator], Encoded] | None = None,
        mix: Mix | None = None,
    ) -> None:
        self.corpus = corpus
        self.tokens = tokens
        self.seed = seed
        self.ends = ends
        self.block = block
        self.vary = vary
        self.mix = mix

    def updates(
        self, size: int, start: Position | None = None, rank: int = 0, count: int = 1
    ) -> Iterator[RankBatches]:
        """The batches of each update, `size` at a time; rank `rank` of `count` gets every count-th.

        Starting at the position of an update goes on exactly as if the iteration had not stopped.
        Which batches belong to an update is the same for any world size; each rank only pads and
        collates its own.
        """
        planned = self._planned(start)
        while some := list(islice(planned, size)):
            tokens = sum(
                int((encoded.target_offsets[rows + 1] - encoded.target_offsets[rows]).sum())
                + len(rows) * (self.ends and encoded.whole)
                for encoded, rows, _ in some
            )
            own = [
                batch_of_rows(encoded, rows, self.ends) for encoded, rows, _ in some[rank::count]
            ]
            yield RankBatches(own, tokens, some[-1][2])

    def _planned(
        self, start: Position | None
    ) -> Iterator[tuple[Encoded, NDArray[np.int64], Position]]:
        position = start or Position()
        while True:
            seen = position.pool > 0 or position.batch > 0
            for encoded, plan, last in self._plans(position):
                for number in range(position.batch, len(plan)):
                    seen = True
                    if number + 1 < len(plan):
                        following = replace(position, batch=number + 1)
                    else:
                        following = _after(position, last)
                    yield encoded, plan[number], following
                position = _after(position, last)
            if position.pool:  # resumed, but the stream has become shorter
                position = Position(position.epoch + 1)
            if not seen and isinstance(self.corpus, StreamingDataset):
                check_some_left(0, self.corpus.corpus, self.corpus.report)
            if not seen:
                raise DataError("there is no pair to make a batch of")

    def _plans(self, start: Position) -> Iterator[tuple[Encoded, list[NDArray[np.int64]], bool]]:
        """Each pool, how it is divided into batches, and whether it is the last; of a stream, made
        while the one before is used."""
        corpus, epoch = self.corpus, start.epoch
        pools: Iterator[tuple[Encoded, bool]]
        if isinstance(corpus, StreamingDataset):
            pools = corpus.pools(start.pool, epoch)
        else:
            pools = iter([(corpus, True)][start.pool :])
        plans = (
            (*self._plan(pool, epoch, number), last)
            for number, (pool, last) in enumerate(pools, start=start.pool)
        )
        return prefetched(plans) if isinstance(corpus, StreamingDataset) else plans

    def _plan(
        self, encoded: Encoded, epoch: int, pool: int
    ) -> tuple[Encoded, list[NDArray[np.int64]]]:
        """The rows of a pool, and how they are divided into batches."""
        entropy = [self.seed, epoch, pool]
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
        if self.vary is not None:
            encoded = self.vary(encoded, random)
        if self.block is not None:
            encoded = cut_anywhere(encoded, self.block, random)
        drawn = None if self.mix is None else self.mix.draw(random)
        plan = _plan(encoded, self.tokens, random, drawn)
        return encoded, [plan[number] for number in random.permutation(len(plan))]


def ordered(
    encoded: Encoded, tokens: int = 4096, rank: int = 0, count: int = 1, ends: bool = True
) -> Iterator[Batch]:
    """One epoch in order of length, deterministic; `batch.rows` restore the order of the corpus.

    Rank `rank` of `count` gets every count-th batch.
    """
    for rows in _plan(encoded, tokens, None)[rank::count]:
        yield batch_of_rows(encoded, rows, ends)


def _after(position: Position, last: bool) -> Position:
    return Position(position.epoch + 1) if last else Position(position.epoch, position.pool + 1)


def prefetched(items: Iterator[T], ahead: int = 1) -> Iterator[T]:
    """Prefetching: the next items are made in a thread while one is used.

    Copies of numpy and the Rust tokenizers release Python's lock (GIL).
    """

    def following() -> list[T]:
        return list(islice(items, 1))

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead") as thread:
        waiting = deque(thread.submit(following) for _ in range(ahead))
        try:
            while got := waiting.popleft().result():
                waiting.append(thread.submit(following))
                yield got[0]
        finally:  # nobody wants the others
            for one in waiting:
                one.cancel()


def _plan(
    encoded: Encoded,
    tokens: int,
    random: np.random.Generator | None,
    drawn: NDArray[np.int64] | None = None,
) -> list[NDArray[np.int64]]:
    """The rows of each batch, bucketed by length; `random` shuffles rows of equal lengths.

    drawn: the rows of the epoch, some of them perhaps several times; by default all, once each.
    """
    sources, targets = (lengths.astype(np.int32) for lengths in encoded.lengths)
    sources += 1
    targets += 2 * encoded.whole
    order = np.arange(len(encoded)) if drawn is None else drawn
    order = random.permutation(order) if random is not None else order
    # Sorted by target length, then by source length, alternately ascending and descending so that a
    # batch that spans two target lengths still has similar sources. Or sorted by the longer side:
    # better where batches are so large that each spans many target lengths. The one with less
    # padding is used.
    turning = np.where(targets % 2 == 0, sources, -sources)
    by_target = _cut(_by_length(order, targets, turning), sources, targets, tokens)
    del turning
    longer = np.maximum(sources, targets)
    by_longer = _cut(_by_length(order, longer, targets), sources, targets, tokens)
    rows, bounds, _ = min(by_target, by_longer, key=lambda plan: plan[2])
    return [rows[start:end] for start, end in pairwise(bounds)]


def _by_length(
    order: NDArray[np.int64], first: NDArray[np.int32], second: NDArray[np.int32]
) -> NDArray[np.int64]:
    """The order sorted by `first` and then by `second`; stable.

    Both keys and the index are packed into one integer: sorting integers is several times faster
    than numpy's lexsort, and takes less memory.
    """
    if not len(order):
        return order
    minimum, bits = int(second.min()), len(order).bit_length()
    span = int(second.max()) - minimum + 1
    if (int(first.max()) + 1) * span >= 1 << (63 - bits):
        return order[np.lexsort((second[order], first[order]))]
    packed = first[order].astype(np.int64)
    packed *= span
    packed += second[order]
    packed -= minimum
    packed <<= bits
    packed |= np.arange(len(order))
    packed.sort()
    packed &= (1 << bits) - 1
    return order[packed]


def _cut(
    rows: NDArray[np.int64], sources: NDArray[np.int32], targets: NDArray[np.int32], tokens: int
) -> tuple[NDArray[np.int64], list[int], int]:
    """Cut the rows into as few batches as the token budget allows: the start of each batch, and the
    total size of these batches on both sides, padding included.
    """
    sources, targets = sources[rows], targets[rows]
    bounds = _bounds(np.maximum(sources, targets), tokens)
    if len(bounds) == 1:
        return rows, bounds, 0
    starts, counts = bounds[:-1], np.diff(bounds)
    widest = np.maximum.reduceat(sources, starts) + np.maximum.reduceat(targets, starts)
    return rows, bounds, int((counts * widest).sum())


def _bounds(lengths: NDArray[np.int32], tokens: int) -> list[int]:
    """Where each batch begins, and the end of the last."""
    found = [0]
    library = None if is_disabled() else _library()
    if library is not None:  # data/c/batches.c: the loop below takes longer than sorting
        lengths, bounds = np.ascontiguousarray(lengths), np.empty(len(lengths) + 1, np.int64)
        places = (lengths.ctypes.data, len(lengths), tokens, bounds.ctypes.data)
        found += bounds[1 : library.cut_batches(*places) + 1].tolist()
    while (start := found[-1]) < len(lengths):
        end = start + max(1, tokens // int(lengths[start]))
        widths = np.maximum.accumulate(lengths[start:end])
        fits = widths * np.arange(1, len(widths) + 1) <= tokens
        # Rows x width increases monotonically, so the fitting ones come first.
        found.append(start + max(1, int(fits.sum())))
    return found


@cache
def _library() -> CDLL | None:
    return declared({"cut_batches": (c_int64, c_void_p, c_int64, c_int64, c_void_p)})
