"""A feed of jobs that arrive a few at a time."""

from __future__ import annotations

from collections.abc import Collection

from transduce.decoding.search.continuous_batching import Job
from transduce.decoding.search.hypothesis import Hypothesis


class Trickle:
    """Some jobs at each look, none at others; some are cancelled after a while."""

    def __init__(self, every: list[Job], counts: list[int], cancelled: dict[int, int]) -> None:
        self.every, self.counts, self.leave = every, counts, cancelled
        self.next = self.looks = 0
        self.found: dict[int, list[Hypothesis]] = {}
        self.under_way = 0
        self.max_beside = 0

    def more(self) -> list[tuple[int, Job]]:
        count = self.counts[self.looks] if self.looks < len(self.counts) else len(self.every)
        self.looks += 1
        some = list(enumerate(self.every))[self.next : self.next + count]
        if some and self.under_way:
            self.max_beside = max(self.max_beside, self.under_way)
        self.next += len(some)
        self.under_way += len(some)
        return some

    def cancelled(self) -> Collection[int]:
        return [number for number, look in self.leave.items() if self.looks > look]

    def done(self, found: list[tuple[int, list[Hypothesis]]]) -> None:
        for number, hypotheses in found:
            assert number not in self.found
            self.found[number] = hypotheses
            self.under_way -= 1
