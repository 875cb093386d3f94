"""Ctrl-C and a polite kill: asked once, a run ends its update and saves.

A second Ctrl-C stops it at once. A second polite kill does not: where several processes train, the
scheduler of a cluster and torchrun each send one.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """While entered, `asked` tells whether someone wants the run to end."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread listen; a run in another thread cannot be interrupted.
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._ask) for s in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._ask:  # else someone else listens by now
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
