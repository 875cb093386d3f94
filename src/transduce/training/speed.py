"""Training speed: tokens per second, and the estimated time left."""

from __future__ import annotations

import time

DECAY = 0.98  # decay of the moving averages: about the last fifty updates count


class TrainingSpeed:
    """Training speed: moving averages of seconds and tokens of an update."""

    def __init__(self) -> None:
        self._seconds = self._tokens = self._weight = 0.0
        self._last: tuple[int, float] | None = None

    def step(self, step: int, tokens: int) -> None:
        now = time.perf_counter()
        # The first update, and the first after a pause, only start the clock: compiling kernels or
        # decoding a validation set says nothing about the updates to come.
        if self._last is not None and step > self._last[0]:
            updates, seconds = step - self._last[0], now - self._last[1]
            self._seconds = DECAY * self._seconds + (1 - DECAY) * seconds / updates
            self._tokens = DECAY * self._tokens + (1 - DECAY) * tokens
            self._weight = DECAY * self._weight + (1 - DECAY)
        self._last = step, now

    def pause(self) -> None:
        """Do not count the time until the next update as training."""
        self._last = None

    @property
    def tokens_per_second(self) -> float | None:
        return self._tokens / self._seconds if self._seconds else None

    def seconds_left(self, updates: int) -> float | None:
        """Estimated seconds for so many updates; None before the first measurement."""
        return max(updates, 0) * self._seconds / self._weight if self._weight else None
