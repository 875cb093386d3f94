"""Pace: how fast training goes, and how long what is left of it takes."""

from __future__ import annotations

import time

MEMORY = 0.98  # of the moving averages: about the last fifty updates count


class Pace:
    """How fast training goes: moving averages of seconds and tokens of an update."""

    def __init__(self) -> None:
        self._seconds = self._tokens = self._weight = 0.0
        self._last: tuple[int, float] | None = None

    def step(self, step: int, tokens: int) -> None:
        now = time.perf_counter()
        # The first update, and the first after a pause, only start the clock: compiling kernels
        # or decoding a validation set says nothing about the updates to come.
        if self._last is not None and step > self._last[0]:
            updates, seconds = step - self._last[0], now - self._last[1]
            self._seconds = MEMORY * self._seconds + (1 - MEMORY) * seconds / updates
            self._tokens = MEMORY * self._tokens + (1 - MEMORY) * tokens
            self._weight = MEMORY * self._weight + (1 - MEMORY)
        self._last = step, now

    def pause(self) -> None:
        """The time until the next update is not training."""
        self._last = None

    @property
    def tokens_per_second(self) -> float | None:
        return self._tokens / self._seconds if self._seconds else None

    def seconds_left(self, updates: int) -> float | None:
        """How long so many updates take; None before there is anything to judge by."""
        return max(updates, 0) * self._seconds / self._weight if self._weight else None
