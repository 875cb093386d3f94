"""One speaker's live session, as the event loop sees it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio.raw import FLOATS, looks_like_floats
from transduce.serving.errors import BadRequest, ServiceError
from transduce.serving.limits import Limits
from transduce.serving.models import Served
from transduce.tasks.live import LiveSession, Transcript

PIECE = 1.0  # seconds of a message that are handed over at a time
LOOKED_AT = 10.0  # seconds at the start, in which samples of another type are noticed


class LiveStream:
    """Samples go in with `send`, transcripts come out of `get`.

    Only the event loop calls its methods, except `absorb`, which the live thread calls.
    """

    def __init__(
        self,
        served: Served,
        session: LiveSession,
        limits: Limits,
        changed: Callable[[LiveStream], None],
    ) -> None:
        self.served, self.session = served, session
        self.loop = asyncio.get_running_loop()
        self.sent_seconds = self.done_seconds = 0.0
        self.finished = self.closed = False
        self.is_read = True
        """Whether a task of its own reads the transcripts, while others send."""
        self.error: ServiceError | None = None
        self.lag = 0.0
        """Seconds from the arrival of the last audio to the end of its recognition."""
        self._limits, self._changed = limits, changed
        self._sent = self._settled = 0
        self._moved = asyncio.Event()
        self._unread: asyncio.Queue[Transcript | None] = asyncio.Queue()
        self._inbox: deque[tuple[NDArray[Any], float]] = deque()
        """What the live thread takes; a deque needs no lock."""
        self._ending = False

    # --------------------------------------------------------------- called by the event loop

    def pieces(self, samples: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """The samples of a message, little by little: one message may hold an hour at a low rate,
        which `send` would take at once."""
        size = max(1, round(PIECE * self.session.rate))
        for start in range(0, len(samples), size):
            yield samples[start : start + size]

    async def send(self, samples: NDArray[Any]) -> None:
        """Hand over samples; waits while too much audio, or too many transcripts, are waiting."""
        while self.sent_seconds - self.done_seconds > self._limits.live_backlog or (
            self.is_read and self._unread.qsize() > self._limits.live_unread
        ):
            await self._move()
        self._raise()
        if not len(samples):
            return
        if self.sent_seconds < LOOKED_AT and looks_like_floats(samples):
            raise BadRequest(f"the audio {FLOATS}")
        self.sent_seconds += len(samples) / self.session.rate
        self._sent += 1
        self._inbox.append((samples, time.monotonic()))
        self._changed(self)

    async def settled(self) -> None:
        """Wait until all that was sent is recognised, as far as it can be without more audio."""
        while self._settled < self._sent and not self.finished:
            await self._move()
        self._raise()

    async def finish(self) -> None:
        """Announce the end of the audio, and wait for the last transcripts."""
        self._ending = True
        self._changed(self)
        while not self.finished:
            await self._move()
        self._raise()

    async def get(self) -> Transcript | None:
        """The next transcript; None: there will be none."""
        found = await self._unread.get()
        self._moved.set()
        return found

    def unread(self) -> list[Transcript]:
        """The transcripts that are there now."""
        found = []
        while not self._unread.empty():
            one = self._unread.get_nowait()
            found += [] if one is None else [one]
        self._moved.set()
        return found

    def close(self) -> None:
        """Nobody listens any more."""
        if not self.closed:
            self.closed = True
            self._inbox.clear()
            self._changed(self)

    def deliver(self, transcripts: list[Transcript], settled: int, done: float, lag: float) -> None:
        """What the live thread has found."""
        for transcript in transcripts:
            self._unread.put_nowait(transcript)
        self._settled, self.done_seconds, self.lag = settled, done, lag
        self._moved.set()

    def end(self, error: ServiceError | None = None) -> None:
        """There will be no more transcripts."""
        if not self.finished:
            self.finished, self.error = True, error
            self._unread.put_nowait(None)
            self._moved.set()

    async def _move(self) -> None:
        self._raise()
        self._moved.clear()
        await self._moved.wait()

    def _raise(self) -> None:
        if self.error is not None:
            raise self.error

    # -------------------------------------------------------------- called by the live thread

    def absorb(self) -> tuple[int, float | None]:
        """Push what has arrived into the session; how many pieces, and when the last came."""
        ending = self._ending  # before the inbox: what came before it is then in it
        count, last = 0, None
        with contextlib.suppress(IndexError):
            while True:
                samples, last = self._inbox.popleft()
                self.session.push(samples)
                count += 1
        if ending and not self.session.ended:
            self.session.end()
        return count, last


def pcm16(data: bytes) -> NDArray[np.int16]:
    """Samples of 16 bits, little endian; an odd last byte is left out."""
    return np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.int16)
