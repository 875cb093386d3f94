"""TrainingSpeed: what is said of the time left."""

from __future__ import annotations

import pytest

from clock import Clock
from transduce.training.progress import TrainingSpeed


def test_time_left_leaves_out_validations(clock: Clock) -> None:
    pace = TrainingSpeed()
    assert pace.seconds_left(100) is None
    for step in range(1, 101):
        clock.now += 30.0 if step == 1 else 0.1  # the first update compiles
        pace.step(step, 500)
        if step % 10 == 0:
            clock.now += 60.0
            pace.pause()
    assert pace.seconds_left(100) == pytest.approx(10.0)
    assert pace.tokens_per_second == pytest.approx(5000)
    assert pace.seconds_left(-1) == 0


def test_time_left_follows_a_change_of_speed(clock: Clock) -> None:
    pace = TrainingSpeed()
    for step in range(1, 501):
        clock.now += 0.1 if step <= 200 else 0.3
        pace.step(step, 500)
    assert pace.seconds_left(100) == pytest.approx(30.0, rel=0.02)
