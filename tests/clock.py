"""A clock that a test tells the time."""

from __future__ import annotations

import time

import pytest


class Clock:
    """A clock that goes on only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
