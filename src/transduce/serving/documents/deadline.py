"""A deadline of work that a thread does for a request."""

from __future__ import annotations

import time

from transduce.serving.errors import ServiceError, Timeout

CLIENT_LEFT = 499


class Deadline:
    """Work that calls `check` from time to time ends soon after its time is over, or after its
    client has gone."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._left = False

    def leave(self) -> None:
        """Nobody waits for the result any more."""
        self._left = True

    def check(self) -> None:
        """Raise Timeout when the time is over."""
        if self._left:
            raise ServiceError(CLIENT_LEFT, "the client has gone", "client_left")
        if time.monotonic() > self._end:
            raise Timeout(f"the document takes longer than {self.seconds:g} s; send a smaller one")
