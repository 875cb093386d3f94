"""Continuous batching of jobs that arrive while others are being decoded."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from transduce.decoding.cuda.pool import CudaSearch, Search
from transduce.decoding.cuda.slots import Job, Slots
from transduce.decoding.search.greedy import Hypothesis

# Slots hold at least so many tokens of source and target, and a pool so many slots: sizes that few
# requests have in common would each need a pool, and CUDA graphs, of their own.
COMMON = (64, 128)
FEWEST = 2


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


@dataclass
class _Running:
    """A pool of slots at work."""

    pool: Slots
    free: list[int]
    held: dict[int, int] = field(default_factory=dict)
    """The number of the job in each slot."""

    def enter(self, jobs: list[tuple[int, Job]]) -> list[tuple[int, Job]]:
        """Jobs take free slots; those that are left over."""
        count = min(len(self.free), len(jobs))
        if count:
            slots, self.free = self.free[:count], self.free[count:]
            self.pool.fill(slots, [job for _, job in jobs[:count]])
            self.held |= zip(slots, (number for number, _ in jobs[:count]), strict=True)
        return jobs[count:]

    def drop(self, gone: Collection[int]) -> None:
        slots = [slot for slot, number in self.held.items() if number in gone]
        self.free += slots  # what is in them goes on until something else takes their place
        for slot in slots:
            del self.held[slot]

    def advance(self) -> list[tuple[int, list[Hypothesis]]]:
        """Some steps; the results of jobs that have ended meanwhile."""
        working = self.pool.go()
        ended = [slot for slot in self.held if not working[slot]]
        taken = self.pool.take(ended) if ended else []
        self.free += ended
        return [(self.held.pop(slot), found) for slot, found in zip(ended, taken, strict=True)]


def decode_feed(search: CudaSearch, feed: JobFeed, settings: Search) -> None:
    """Decode jobs as they arrive, until there are none.

    A job takes a slot as soon as there is a free one of its size, while its neighbours go on.
    """
    search.copy_weights()
    waiting: dict[tuple[int, int], list[tuple[int, Job]]] = {}
    running: dict[tuple[int, int], list[_Running]] = {}
    while True:
        for number, job in feed.more():
            size = tuple(map(max, search.size_of(job), search.limited(COMMON)))
            waiting.setdefault((size[0], size[1]), []).append((number, job))
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
                    pools.append(_Running(slots, list(range(slots.shape.slots))))
                    jobs = pools[-1].enter(jobs)
                    pools.sort(key=lambda pool: -pool.pool.shape.slots)
            waiting[size] = jobs
        working = [pool for pools in running.values() for pool in pools if pool.held]
        if not working and not any(waiting.values()):
            return
        found = [one for pool in working for one in pool.advance()]
        if found:
            feed.done(found)
