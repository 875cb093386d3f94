"""A clock in the hands of the test."""

from __future__ import annotations

import pytest

from clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)
