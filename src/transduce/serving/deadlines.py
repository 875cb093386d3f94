"""Deadlines: calls that are made when something has taken too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


class Deadlines:
    """Calls that are made some seconds after they were added, unless they are taken back: almost
    all are, so that there is one timer for all of them. Use it within an event loop."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._due: dict[Callable[[], None], float] = {}
        """The next one is the first, as each is added with the same delay."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that has a timer for the next one."""

    def add(self, call: Callable[[], None]) -> None:
        self._due[call] = time.monotonic() + self.seconds
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            loop.call_later(self.seconds, self._expire)

    def discard(self, call: Callable[[], None]) -> None:
        self._due.pop(call, None)

    def _expire(self) -> None:
        now = time.monotonic()
        loop, self._loop = self._loop, None
        while self._due:
            call, due = next(iter(self._due.items()))
            if due > now and loop is not None:
                self._loop = loop
                loop.call_later(due - now, self._expire)
                return
            del self._due[call]
            call()
