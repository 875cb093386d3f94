"""Batches: bucketing by length, padding, and an order that seed and position determine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.audio.corpus import AudioCorpus, audio_corpus
from transduce.data.batches.blocks import cut_anywhere
from transduce.data.batches.stream import Stream
from transduce.data.cache.tokenised import Encoded, check_some_left
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.errors import DataError

T = TypeVar("T")


@dataclass
class Batch:
    """A padded batch. The decoder reads target_BT[:, :-1] and predicts target_BT[:, 1:].

    Lengths stay on the CPU, so that reading them does not synchronise with a device.

    Source rows end with END; target rows start with BEGIN and end with END (labels have no END on
    either side, blocks of running text none in the target). `target_lengths_B` counts predicted
    tokens: not BEGIN. `lines` are line numbers in the files, for messages; `rows` are rows of the
    `Encoded` corpus, to restore its order.

    With audio, source_BS holds 16-bit samples padded with zeros, and transcript_BT the tokens of
    the transcripts, without special tokens.
    """

    source_BS: Tensor
    source_lengths_B: Tensor
    target_BT: Tensor | None
    target_lengths_B: Tensor | None
    lines: list[int]
    rows: list[int]
    target_tokens: int
    """Predicted tokens, without padding; known without synchronising with a device."""
    padding_share: float
    """Share of padding among the inputs of encoder and decoder."""
    transcript_BT: Tensor | None = None
    transcript_lengths_B: Tensor | None = None
    tags_BG: Tensor | None = None
    """Tags of audio sources, one-hot."""

    def __len__(self) -> int:
        return len(self.lines)

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device; to CUDA from pinned memory, asynchronously."""
        device = torch.device(device)

        def moved(tensor: Tensor) -> Tensor:
            if device.type == "cuda" and tensor.device.type == "cpu":
                tensor = tensor.pin_memory()
            return tensor.to(device, non_blocking=device.type == "cuda")

        return replace(
            self,
            source_BS=moved(self.source_BS),
            target_BT=None if self.target_BT is None else moved(self.target_BT),
            transcript_BT=None if self.transcript_BT is None else moved(self.transcript_BT),
            tags_BG=None if self.tags_BG is None else moved(self.tags_BG),
        )

    def twice(self) -> Batch:
        """The batch repeated, for the two passes of R-Drop."""
        assert self.target_BT is not None
        assert self.target_lengths_B is not None
        return Batch(
            source_BS=self.source_BS.repeat(2, 1),
            source_lengths_B=self.source_lengths_B.repeat(2),
            target_BT=self.target_BT.repeat(2, 1),
            target_lengths_B=self.target_lengths_B.repeat(2),
            lines=2 * self.lines,
            rows=2 * self.rows,
            target_tokens=2 * self.target_tokens,
            padding_share=self.padding_share,
            transcript_BT=None if self.transcript_BT is None else self.transcript_BT.repeat(2, 1),
            transcript_lengths_B=None
            if self.transcript_lengths_B is None
            else self.transcript_lengths_B.repeat(2),
            tags_BG=None if self.tags_BG is None else self.tags_BG.repeat(2, 1),
        )

    def part(self, rows: slice) -> Batch:
        """A subset of the rows, padded to the longest of them."""
        source_lengths_B = self.source_lengths_B[rows]
        source_BS = self.source_BS[rows, : int(source_lengths_B.max())]
        real, places = int(source_lengths_B.sum()), source_BS.numel()
        target_BT, target_lengths_B, target_tokens = None, None, 0
        if self.target_BT is not None and self.target_lengths_B is not None:
            target_lengths_B = self.target_lengths_B[rows]
            target_BT = self.target_BT[rows, : 1 + int(target_lengths_B.max())]
            target_tokens = int(target_lengths_B.sum())
            real, places = real + target_tokens, places + target_BT[:, 1:].numel()
        return Batch(
            source_BS=source_BS.contiguous(),
            source_lengths_B=source_lengths_B,
            target_BT=None if target_BT is None else target_BT.contiguous(),
            target_lengths_B=target_lengths_B,
            lines=self.lines[rows],
            rows=self.rows[rows],
            target_tokens=target_tokens,
            padding_share=1 - real / places,
            transcript_BT=None
            if self.transcript_BT is None
            else self.transcript_BT[rows].contiguous(),
            transcript_lengths_B=None
            if self.transcript_lengths_B is None
            else self.transcript_lengths_B[rows],
            tags_BG=None if self.tags_BG is None else self.tags_BG[rows],
        )


Row = Sequence[int] | NDArray[np.int32] | NDArray[np.int16]


def collate(
    sources: Sequence[Row],
    targets: Sequence[Row] | None,
    lines: Sequence[int] | None = None,
    ends: bool = True,
) -> Batch:
    """A padded batch from rows of ids without special tokens; without targets at inference.

    `ends`, here and below: whether END is appended to rows. Rows of 16-bit integers are audio.
    """
    if len(sources) and getattr(sources[0], "dtype", None) == np.int16:
        return _batch(audio_corpus(sources, targets), np.arange(len(sources)), ends, bool(targets))
    rows = np.arange(len(sources))
    encoded_targets = targets if targets is not None else [[]] * len(sources)
    encoded = Encoded(
        *_flat(sources),
        *_flat(encoded_targets),
        lines=np.asarray(rows + 1 if lines is None else lines, np.int64),
        numbers=rows,
    )
    return _batch(encoded, rows, ends, with_targets=targets is not None)


def _flat(rows: Sequence[Row]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    empty = np.zeros(0, np.int32)
    return np.concatenate([empty, *(np.asarray(row, np.int32) for row in rows)]), offsets


def _batch(
    encoded: Encoded, rows: NDArray[np.int64], ends: bool, with_targets: bool = True
) -> Batch:
    sides = encoded.source_ids, encoded.source_offsets, rows
    transcript_BT, transcript_lengths_B, tags_BG = None, None, None
    source_BS: NDArray[Any]
    if isinstance(encoded, AudioCorpus):
        source_BS, source_lengths_B = encoded.waves(rows)
        transcripts, lengths = _padded(
            encoded.transcript_ids, encoded.transcript_offsets, rows, False, False
        )
        transcript_BT, transcript_lengths_B = (
            torch.from_numpy(transcripts),
            torch.from_numpy(lengths),
        )
        if encoded.tags is not None:
            tags_BG = torch.from_numpy(encoded.tags[rows])
    else:
        source_BS, source_lengths_B = _padded(*sides, False, ends)
    real, places = int(source_lengths_B.sum()), source_BS.size
    target_BT, target_lengths_B = None, None
    target_tokens = 0
    if with_targets:
        end = ends and encoded.whole
        padded, lengths = _padded(encoded.target_ids, encoded.target_offsets, rows, True, end)
        target_tokens = int(lengths.sum())
        real, places = real + target_tokens, places + padded.size - len(rows)
        target_BT, target_lengths_B = torch.from_numpy(padded), torch.from_numpy(lengths)
    return Batch(
        source_BS=torch.from_numpy(source_BS),
        source_lengths_B=torch.from_numpy(source_lengths_B),
        target_BT=target_BT,
        target_lengths_B=target_lengths_B,
        lines=encoded.lines[rows].tolist(),
        rows=rows.tolist(),
        target_tokens=target_tokens,
        padding_share=1 - real / places if places else 0.0,
        transcript_BT=transcript_BT,
        transcript_lengths_B=transcript_lengths_B,
        tags_BG=tags_BG,
    )


def _padded(
    ids: NDArray[np.int32],
    offsets: NDArray[np.int64],
    rows: NDArray[np.int64],
    begin: bool,
    end: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows padded to one tensor, with BEGIN and END where asked; their lengths without BEGIN."""
    starts, lengths_B = offsets[rows], offsets[rows + 1] - offsets[rows]
    width = int(lengths_B.max(initial=0))
    places = np.arange(width)
    real = places < lengths_B[:, None]
    first = int(begin)
    padded = np.full((len(rows), max(first + width + int(end), 1)), PAD, np.int64)
    padded[:, :first] = BEGIN
    padded[:, first : first + width][real] = ids[(starts[:, None] + places)[real]]
    if end:
        padded[np.arange(len(rows)), first + lengths_B] = END
    return padded, lengths_B + int(end)


# ------------------------------------------------------------------------------------ the order


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
    epoch; with `vary`, each epoch reads an augmented version of it.
    """

    def __init__(
        self,
        corpus: Encoded | Stream,
        tokens: int = 4096,
        seed: int = 1,
        ends: bool = True,
        block: int | None = None,
        vary: Callable[[Encoded, np.random.Generator], Encoded] | None = None,
    ) -> None:
        self.corpus = corpus
        self.tokens = tokens
        self.seed = seed
        self.ends = ends
        self.block = block
        self.vary = vary

    def iterate(self, start: Position | None = None) -> Iterator[tuple[Batch, Position]]:
        """Batches from `start` on, each with the position of the batch after it.

        Starting at such a position resumes exactly as if the iteration had not stopped.
        """
        for encoded, rows, following in self._planned(start):
            yield _batch(encoded, rows, self.ends), following

    def updates(
        self, size: int, start: Position | None = None, rank: int = 0, count: int = 1
    ) -> Iterator[RankBatches]:
        """The batches of each update, `size` at a time; rank `rank` of `count` gets every count-th.

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
            own = [_batch(encoded, rows, self.ends) for encoded, rows, _ in some[rank::count]]
            yield RankBatches(own, tokens, some[-1][2])

    def _planned(
        self, start: Position | None
    ) -> Iterator[tuple[Encoded, NDArray[np.int64], Position]]:
        position = start or Position()
        while True:
            seen = position.pool > 0 or position.batch > 0
            for pool, last in self._pools(position):
                encoded, plan = self._plan(pool, position)
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
            if not seen and isinstance(self.corpus, Stream):
                check_some_left(0, self.corpus.corpus, self.corpus.report)
            if not seen:
                raise DataError("there is no pair to make a batch of")

    def _pools(self, start: Position) -> Iterator[tuple[Encoded, bool]]:
        if isinstance(self.corpus, Stream):
            return _prefetched(self.corpus.pools(start.pool, start.epoch))
        return iter([(self.corpus, True)][start.pool :])

    def _plan(
        self, encoded: Encoded, position: Position
    ) -> tuple[Encoded, list[NDArray[np.int64]]]:
        """The rows of a pool, and how they are divided into batches."""
        entropy = [self.seed, position.epoch, position.pool]
        random = np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
        if self.vary is not None:
            encoded = self.vary(encoded, random)
        if self.block is not None:
            encoded = cut_anywhere(encoded, self.block, random)
        plan = _plan(encoded, self.tokens, random)
        return encoded, [plan[number] for number in random.permutation(len(plan))]


def ordered(
    encoded: Encoded, tokens: int = 4096, rank: int = 0, count: int = 1, ends: bool = True
) -> Iterator[Batch]:
    """One epoch in order of length, deterministic; `batch.rows` restore the order of the corpus.

    Rank `rank` of `count` gets every count-th batch.
    """
    for rows in _plan(encoded, tokens, None)[rank::count]:
        yield _batch(encoded, rows, ends)


def _after(position: Position, last: bool) -> Position:
    return Position(position.epoch + 1) if last else Position(position.epoch, position.pool + 1)


def _prefetched(items: Iterator[T]) -> Iterator[T]:
    """Prefetching: the next item is made in a thread while one is used.

    The Rust tokenizers release Python's lock (GIL).
    """

    def following() -> list[T]:
        return list(islice(items, 1))

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="pools") as thread:
        waiting = thread.submit(following)
        while got := waiting.result():
            waiting = thread.submit(following)
            yield got[0]


def _plan(
    encoded: Encoded, tokens: int, random: np.random.Generator | None
) -> list[NDArray[np.int64]]:
    """The rows of each batch, bucketed by length; `random` shuffles rows of equal lengths."""
    sources, targets = (lengths.astype(np.int32) for lengths in encoded.lengths)
    sources += 1
    targets += 2 * encoded.whole
    order = random.permutation(len(encoded)) if random is not None else np.arange(len(encoded))
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
    least, bits = int(second.min()), len(order).bit_length()
    span = int(second.max()) - least + 1
    if (int(first.max()) + 1) * span >= 1 << (63 - bits):
        return order[np.lexsort((second[order], first[order]))]
    packed = first[order].astype(np.int64)
    packed *= span
    packed += second[order]
    packed -= least
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
    longer = np.maximum(sources, targets)
    bounds = [0]
    while (start := bounds[-1]) < len(rows):
        end = start + max(1, tokens // int(longer[start]))
        widths = np.maximum.accumulate(longer[start:end])
        fits = widths * np.arange(1, len(widths) + 1) <= tokens
        # Rows x width increases monotonically, so the fitting ones come first.
        bounds.append(start + max(1, int(fits.sum())))
    if len(bounds) == 1:
        return rows, bounds, 0
    starts, counts = bounds[:-1], np.diff(bounds)
    widest = np.maximum.reduceat(sources, starts) + np.maximum.reduceat(targets, starts)
    return rows, bounds, int((counts * widest).sum())
