"""Work off the event loop: what would hold up other clients, such as reading a long document.

Each piece has a deadline, and none is begun for a client that has gone; one that has begun asks
`check_wanted` from time to time. The threads do not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from transduce.serving.errors import Timeout

T = TypeVar("T")
THREADS = 4


class NotWantedError(Exception):
    """Nobody waits for the result any more."""


@dataclass
class _Piece:
    call: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    dropped: threading.Event = field(default_factory=threading.Event)

    def done(self, value: Any, error: BaseException | None) -> None:
        """Within the event loop."""
        if self.future.done():
            return
        if error is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(value)


_own = threading.local()


def check_wanted() -> None:
    """Raise where the client has gone, or the time is over; called within a piece of work."""
    piece: _Piece | None = getattr(_own, "piece", None)
    if piece is not None and piece.dropped.is_set():
        raise NotWantedError


def post(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *values: Any) -> None:
    """Have the event loop make a call, from any thread."""
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(call, *values)


class Threads:
    """A few threads, made when they are needed."""

    def __init__(self, seconds: float, maximum: int = THREADS) -> None:
        """seconds: the time of a piece of work, from its arrival to its result."""
        self.seconds, self.maximum = seconds, maximum
        self._waiting: queue.SimpleQueue[_Piece | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    async def run(self, function: Callable[..., T], *values: Any) -> T:
        """The result of a call, made in a thread. Raises Timeout."""
        loop = asyncio.get_running_loop()
        piece = _Piece(lambda: function(*values), loop, loop.create_future())
        if len(self._threads) < self.maximum:
            thread = threading.Thread(target=self._serve, name="off the loop", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._waiting.put(piece)
        try:
            async with asyncio.timeout(self.seconds):
                found: T = await piece.future
        except TimeoutError:
            raise Timeout(
                f"the request was not done within {self.seconds:g} s; send less at once"
            ) from None
        finally:
            piece.dropped.set()
        return found

    def stop(self) -> None:
        """End the threads; what is being done is not waited for."""
        for _ in self._threads:
            self._waiting.put(None)
        self._threads = []

    def _serve(self) -> None:
        while (piece := self._waiting.get()) is not None:
            if piece.dropped.is_set():
                continue
            _own.piece = piece
            value, failure = None, None
            try:
                value = piece.call()
            except BaseException as error:
                failure = error
            _own.piece = None
            post(piece.loop, piece.done, value, failure)
            del piece, value, failure
