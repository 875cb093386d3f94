"""Limits of the service: what one request may ask for, and what may wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Work is counted in source tokens times hypotheses, as estimated before tokenization."""

    queue_tokens: int = 200_000
    """Work that may wait, over all requests; above, requests are rejected with 429."""
    queue_seconds: float = 30.0
    """Time from the arrival of a request to its output, at the speed measured so far; above, 429
    as well."""
    batch_tokens: int = 4096
    """Work of one batch on a CPU."""
    batch_seconds: float = 0.5
    """Time of one batch on a CPU, at the speed measured so far. All outputs of a batch come at its
    end, so a request also waits for those that came after it into the same batch."""
    batch_tokens_on_gpu: int = 1 << 16
    texts: int = 1000
    """Texts of one request."""
    characters: int = 20_000
    """Characters of one text, a prefix or a phrase."""
    inspected_characters: int = 2000
    """Characters of a text whose attention is shown: a map of each head is sent."""
    body_bytes: int = 8 << 20
    """Bytes of a JSON or form body."""
    upload_bytes: int = 1 << 30
    """Bytes of a body with files."""
    seconds: float = 120.0
    """Time of one request, from its arrival to its answer."""
    idle_seconds: float = 20.0
    """Time in which a client must send the next part of its request."""
    connections: int = 1000
    """Requests that are open at the same time."""
    live_sessions: int = 200
    """Live sessions that are open at the same time."""
    live_seconds: float = 4 * 3600.0
    """The longest live connection."""
    live_idle_seconds: float = 60.0
    """Time in which the client of a live connection must send something."""
    live_backlog: float = 10.0
    """Seconds of audio of a live session that may wait; above, no more is read from its client."""
    live_message_bytes: int = 4 << 20
    """Bytes of one WebSocket message."""
    alternatives: int = 50
    """Alternatives of each token of a stream."""

    @property
    def longest_batch(self) -> float:
        """batch_seconds, or less where little time may pass in the queue."""
        return min(self.batch_seconds, self.queue_seconds / 4)


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
