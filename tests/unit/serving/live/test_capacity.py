"""How many live sessions fit: measured by a probe, and by all work since."""

from __future__ import annotations

import math
from typing import Any

import pytest

from transduce.serving.live import capacity
from transduce.serving.live.capacity import Capacity, probe


def test_sessions_that_fill_the_time_of_the_live_thread() -> None:
    found = Capacity()
    assert found.sessions(0.9) == math.inf
    found.add(1.0, 10.0)
    assert found.factor == pytest.approx(0.1)
    assert found.sessions(0.9) == pytest.approx(9)
    assert found.sessions(0) == math.inf
    for _ in range(100):  # slower now: what was before is forgotten
        found.add(1.0, 2.0)
    assert found.sessions(1.0) == pytest.approx(2, rel=0.1)
    found.add(3.0, 0.0)  # work on audio that came before counts
    assert found.sessions(1.0) < 2


class Session:
    def __init__(self) -> None:
        self.seconds, self.ended, self.closed = 0.0, False, False

    def push(self, samples: Any) -> None:
        assert not self.ended
        self.seconds += len(samples) / Recogniser.rate

    def end(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True


class Recogniser:
    """Takes a while for each call, and less for each session of a batch."""

    rate = 4000

    def __init__(self, clock: list[float], seconds: float) -> None:
        self.clock, self.seconds = clock, seconds
        self.sessions: list[Session] = []

    def session(self) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    def advance(self, sessions: list[Session]) -> None:
        assert all(one.ended and one.seconds == capacity.PROBE_SECONDS for one in sessions)
        self.clock[0] += self.seconds * (1 + 0.1 * len(sessions))


@pytest.mark.parametrize(
    ("seconds", "found"),
    [(0.1, (0.14, 8.0)), (1.0, (1.1, 2.0))],  # of the slow one, no batch is tried
)
def test_the_probe(
    monkeypatch: pytest.MonkeyPatch, seconds: float, found: tuple[float, float]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(capacity.time, "perf_counter", lambda: clock[0])
    made: Any = Recogniser(clock, seconds)
    assert probe(made) == pytest.approx(found)
    assert all(session.closed for session in made.sessions)
