"""Signals: after Ctrl-C (SIGINT) or SIGTERM a run finishes its update, saves a checkpoint and ends.

A second Ctrl-C stops it at once. A second SIGTERM does not: with several processes, the scheduler
of a cluster and torchrun each send one.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

# SIGHUP: the terminal was closed, or its connection broke. Windows has none.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


class StopSignals:
    """While entered, `asked` says whether a signal has asked the run to stop."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # Python allows signal handlers only in the main thread; a run in another thread cannot be
        # interrupted.
        if threading.current_thread() is threading.main_thread():
            # Ignored signals stay ignored: nohup and shells do that on purpose.
            handled = [s for s in SIGNALS if signal.getsignal(s) != signal.SIG_IGN]
            self._before = {s: signal.signal(s, self._ask) for s in handled}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._ask:  # otherwise another handler was installed
                signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
