"""Continuous batching: sentences take slots, and others enter while they go on.

Each sentence in a slot is at a step of its own. Slots are advanced by CUDA graphs
(cuda/graph_slots.py) or in C on a CPU (cpu/pool.py); here is what both need: jobs, the sizes and
settings of slots, and how jobs that arrive while others are being decoded take them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from transduce.decoding.search.beam import finished_at_most
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.models import EncoderDecoder
from transduce.nn.embedding.tokens import TokenEmbedding
from transduce.nn.positions import Learned

# Slots hold at least so many tokens of source and target, and a pool so many slots: sizes that few
# requests have in common would each need a pool, and CUDA graphs, of their own.
COMMON = (64, 128)
FEWEST = 2


@dataclass(frozen=True)
class Job:
    """A source and the maximum length of its output, including END."""

    source: Sequence[int]
    limit: int


@dataclass(frozen=True)
class Shape:
    """The shape of a pool of slots: sentences, hypotheses of each, lengths."""

    slots: int
    beam: int
    source: int
    target: int
    nbest: int = 1
    length_penalty: float = 1.0
    minimum: int = 0
    maximum: int | None = None
    """Finished hypotheses after which beam search stops; None: not by their number."""


@dataclass(frozen=True)
class Search:
    """Settings of a search by slots."""

    beam: int = 1
    nbest: int = 1
    length_penalty: float = 1.0
    minimum: int = 0
    """The minimum length, END included."""
    patience: float | None = None


def shape_of(settings: Search, slots: int, size: tuple[int, int]) -> Shape:
    """The shape of a pool for these settings. size: lengths of source and target."""
    rows = max(settings.beam, settings.nbest)
    ended = None if rows == 1 else finished_at_most(settings.patience, rows, settings.nbest)
    shape = (slots, rows, *size, settings.nbest, settings.length_penalty, settings.minimum)
    return Shape(*shape, ended)


class SlotSizes:
    """The lengths of source and target of the slots that jobs of a network take."""

    def __init__(self, network: EncoderDecoder) -> None:
        self.source, self.target = map(_positions_of, (network.front, network.decoder.embedding))

    def of(self, job: Job) -> tuple[int, int]:
        return round_up(len(job.source) + 1, self.source), round_up(job.limit, self.target)

    def limited(self, size: tuple[int, int]) -> tuple[int, int]:
        """The same where there are as many positions."""
        return min(size[0], self.source), min(size[1], self.target)


def round_up(length: int, maximum: int) -> int:
    """Round a length up to a power of two from 32 to `maximum`, so that pools are reused."""
    return min(max(32, 1 << (length - 1).bit_length()), maximum)


def _positions_of(embedding: nn.Module) -> int:
    """The number of learned positions; other kinds, and audio, have no limit."""
    if not isinstance(embedding, TokenEmbedding) or embedding.positions is None:
        return sys.maxsize
    table = embedding.positions.positions
    return table.max_length if isinstance(table, Learned) else sys.maxsize


# --------------------------------------------------------------------- jobs that arrive meanwhile


class JobFeed(Protocol):
    """Where jobs come from, under numbers of the feed's own, and where their results go."""

    def more(self) -> Iterable[tuple[int, Job]]:
        """The jobs that have arrived since it was last asked."""
        ...

    def cancelled(self) -> Collection[int]:
        """Jobs whose results are no longer needed."""
        ...

    def done(self, found: list[tuple[int, list[Hypothesis]]]) -> None:
        """The hypotheses of jobs that have ended, best first."""
        ...


class Pool(Protocol):
    """Slots of one size."""

    shape: Shape

    def fill(self, slots: list[int], jobs: Sequence[Job]) -> None:
        """Put new sentences into these slots."""

    def launch(self) -> bool:
        """Begin the steps of the next `go` without waiting for them; False: they begin there."""
        ...

    def go(self) -> list[bool]:
        """Some steps; whether each slot still has work."""
        ...

    def take(self, slots: list[int]) -> list[list[Hypothesis]]:
        """The hypotheses of the sentences in these slots, best first."""
        ...

    def close(self, slots: list[int]) -> None:
        """What is in these slots is no longer needed."""


class Pools(Protocol):
    """Pools of slots of all sizes."""

    sizes: SlotSizes

    def takes(self, settings: Search) -> bool:
        """Whether it has a search with these settings."""
        ...

    def pool_for(
        self, jobs: int, size: tuple[int, int], settings: Search, busy: Sequence[Any] = ()
    ) -> Pool | None:
        """A pool for so many jobs of a size; None where that is one of the busy ones."""


@dataclass
class Running:
    """A pool of slots at work."""

    pool: Pool
    fill: Callable[[list[int], Sequence[Job]], None]
    """Puts jobs into slots of the pool."""
    held: dict[int, int] = field(default_factory=dict)
    """The number of the job in each slot."""

    def __post_init__(self) -> None:
        self.free = [slot for slot in range(self.pool.shape.slots) if slot not in self.held]

    def enter(self, jobs: list[tuple[int, Job]]) -> list[tuple[int, Job]]:
        """Jobs take free slots; those that are left over."""
        count = min(len(self.free), len(jobs))
        if count:
            slots, self.free = self.free[:count], self.free[count:]
            self.fill(slots, [job for _, job in jobs[:count]])
            self.held |= zip(slots, (number for number, _ in jobs[:count]), strict=True)
        return jobs[count:]

    def drop(self, gone: Collection[int]) -> None:
        slots = [slot for slot, number in self.held.items() if number in gone]
        if slots:
            self.pool.close(slots)
        self.free += slots
        for slot in slots:
            del self.held[slot]

    def advance(self) -> list[tuple[int, list[Hypothesis]]]:
        """Some steps; the results of jobs that have ended meanwhile."""
        working = self.pool.go()
        ended = [slot for slot in self.held if not working[slot]]
        taken = self.pool.take(ended) if ended else []
        self.free += ended
        return [(self.held.pop(slot), found) for slot, found in zip(ended, taken, strict=True)]


def decode_feed(search: Pools, feed: JobFeed, settings: Search) -> None:
    """Decode jobs as they arrive, until there are none.

    A job takes a slot as soon as there is a free one of its size, while its neighbours go on. A GPU
    has its next steps before the results of the last ones go to the feed, and new jobs come from
    it: the host makes texts of tokens and tokens of texts while the GPU is busy.
    """
    waiting: dict[tuple[int, int], list[tuple[int, Job]]] = {}
    running: dict[tuple[int, int], list[Running]] = {}
    found: list[tuple[int, list[Hypothesis]]] = []

    def take_more() -> None:
        for number, job in feed.more():
            size = tuple(map(max, search.sizes.of(job), search.sizes.limited(COMMON)))
            waiting.setdefault((size[0], size[1]), []).append((number, job))

    while True:
        take_more()
        if gone := feed.cancelled():
            for size in waiting:
                waiting[size] = [entry for entry in waiting[size] if entry[0] not in gone]
            for pool in (pool for pools in running.values() for pool in pools):
                pool.drop(gone)
        for size, jobs in waiting.items():
            pools = running[size] = [pool for pool in running.get(size, []) if pool.held]
            for pool in pools:  # the largest first: the others come to their end
                jobs = pool.enter(jobs)
            if jobs:
                busy = [pool.pool for pools in running.values() for pool in pools]
                slots = search.pool_for(max(len(jobs), FEWEST), size, settings, busy)
                if slots is not None:
                    pools.append(Running(slots, slots.fill))
                    jobs = pools[-1].enter(jobs)
                    pools.sort(key=lambda pool: -pool.pool.shape.slots)
            waiting[size] = jobs
        working = [pool for pools in running.values() for pool in pools if pool.held]
        launched = [pool for pool in working if pool.pool.launch()]
        if found:
            feed.done(found)
        if not working and not any(waiting.values()):
            return
        if launched:
            take_more()
        found = [one for pool in working for one in pool.advance()]
        if found and not launched:
            feed.done(found)
            found = []
