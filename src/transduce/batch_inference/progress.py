"""Progress of a batch job: shards and lines done, speed, time left; from the job's files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from transduce.batch_inference.inputs import Shard
from transduce.batch_inference.job import Job
from transduce.batch_inference.worker import lines_in
from transduce.terminal import duration

TERMINAL, PLAIN = 1.0, 30.0  # seconds between two lines, on a terminal and elsewhere
FIRST = 5.0  # seconds before the first line elsewhere: whether it works, and how long it takes


class Progress:
    """Lines of progress of some shards of a job, by all processes that work on them."""

    def __init__(
        self,
        job: Job,
        shards: Sequence[Shard],
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.job = job
        self.pending = list(shards)
        self.shards = len(shards)
        self.total = sum(shard.lines for shard in shards)
        self.finished = 0
        """Lines of finished shards."""
        # Behind the filter of control characters: a line of numbers that erases the one before.
        own = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        self.stream = own if stream is None else stream
        self.terminal = self.stream is not None and self.stream.isatty()
        self.clock = clock
        self.begin = self.shown_at = clock()
        self.at_begin = self.lines()

    @property
    def done(self) -> int:
        """Shards that were finished when `lines` was last called."""
        return self.shards - len(self.pending)

    def lines(self) -> int:
        """Lines done, those of unfinished shards included."""
        still, running = self.job.unfinished(self.pending), 0
        self.finished += sum(shard.lines for shard in self.pending)
        self.finished -= sum(shard.lines for shard in still)
        self.pending = still
        names = {self.job.claim(shard).name for shard in still}
        for path in self.job.claims.glob("part-*"):
            running += lines_in(path) if path.name in names else 0
        return min(self.total, self.finished + running)

    def show(self, force: bool = False) -> None:
        """Show a line, unless one was shown a moment ago."""
        now = self.clock()
        pause = TERMINAL if self.terminal else FIRST if self.shown_at == self.begin else PLAIN
        if self.stream is None or (now - self.shown_at < pause and not force):
            return
        self.shown_at = now
        text = self.line(now)
        if self.terminal:
            self.stream.write(f"\r\x1b[K{text}" + ("\n" if force else ""))
        else:
            self.stream.write(text + "\n")
        self.stream.flush()

    def line(self, now: float) -> str:
        lines = self.lines()
        share = 100 * lines // max(1, self.total)
        text = f"{self.done:,}/{self.shards:,} shards, {lines:,}/{self.total:,} lines ({share} %)"
        speed = (lines - self.at_begin) / max(1e-9, now - self.begin)
        if speed <= 0:
            return text
        text += f", {speed:,.0f} lines/s"
        if lines < self.total:
            text += f", {duration((self.total - lines) / speed)} left"
        return text
