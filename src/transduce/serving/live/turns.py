"""Turns: the two threads that use a model, for requests and for live speech, take turns."""

from __future__ import annotations

import threading


class Turns:
    """A lock that threads get in the order in which they asked for it: neither starves."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._asked = self._given = 0

    def __enter__(self) -> None:
        with self._condition:
            own = self._asked
            self._asked += 1
            while own != self._given:
                self._condition.wait()

    def __exit__(self, *_: object) -> None:
        with self._condition:
            self._given += 1
            self._condition.notify_all()
