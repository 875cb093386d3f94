"""Bad numbers: what is skipped, how the rate follows, when a run is stuck, what is a jump."""

from __future__ import annotations

import math
import random

import pytest
import torch

from transduce.training.log_window import Outcome
from transduce.training.nan_guard import (
    FIRST_LINES,
    LOWEST,
    MAX_IN_A_ROW,
    RECOVERED,
    NanGuard,
    nonfinite,
)

GOOD, BAD = Outcome(6.0, 1.0, 3, 5.0), Outcome(math.nan, 1.0, 3, 5.0)
NUMBERS = [0.0, -1.5, 3e38, 1e-45, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("loss", NUMBERS)
@pytest.mark.parametrize("norm", NUMBERS)
def test_what_the_device_skips_the_host_counts_as_skipped(loss: float, norm: float) -> None:
    flag = nonfinite(torch.tensor(loss, dtype=torch.float64), torch.tensor(norm))
    assert flag.dtype == torch.float32
    assert float(flag) == float(not (math.isfinite(loss) and math.isfinite(norm)))
    assert Outcome(loss, norm, 1, 1.0).usable == (float(flag) == 0.0)


def test_each_look_that_finds_any_halves_the_rate_once() -> None:
    guard = NanGuard()
    guard.look([GOOD, BAD, BAD, GOOD])
    assert (guard.factor, guard.skipped, guard.in_a_row) == (0.5, 2, 0)
    guard.look([GOOD])
    assert guard.factor == 0.5
    guard.look([BAD])
    assert (guard.factor, guard.skipped, guard.in_a_row) == (0.25, 3, 1)
    for _ in range(10):
        guard.look([GOOD, BAD])
    assert guard.factor == LOWEST


def test_the_rate_comes_back_slowly() -> None:
    guard = NanGuard(factor=0.25)
    guard.look([GOOD] * (RECOVERED - 1))
    assert guard.factor == 0.25
    guard.look([GOOD])
    assert guard.factor == 0.5
    guard.look([GOOD] * (RECOVERED - 1))
    guard.look([BAD])
    guard.look([GOOD] * (RECOVERED - 1))
    assert guard.factor == 0.25
    guard.look([GOOD] * 10 * RECOVERED)
    assert guard.factor == 1.0


def test_a_run_is_stuck_after_so_many_in_a_row_however_it_looks() -> None:
    for looks in (1, 5):
        guard = NanGuard()
        guard.look([GOOD])
        for _ in range(0, MAX_IN_A_ROW, looks):
            assert not guard.stuck
            guard.look([BAD] * looks)
        assert guard.stuck
        assert guard.in_a_row == MAX_IN_A_ROW
        assert guard.loss == 2.0
    guard = NanGuard()
    for _ in range(100):
        guard.look([BAD] * (MAX_IN_A_ROW - 1) + [GOOD])
    assert not guard.stuck


def noise(count: int) -> list[float]:
    draw = random.Random(1)
    return [3.0 + draw.gauss(0, 0.1) for _ in range(count)]


def test_a_jump_is_seen_and_does_not_hide_the_next() -> None:
    guard = NanGuard()
    assert not any(guard.jumps(loss) for loss in noise(50))
    assert guard.jumps(6.0)
    assert not any(guard.jumps(loss) for loss in noise(3))
    assert guard.jumps(6.0)


def test_a_loss_that_stays_high_becomes_usual() -> None:
    guard = NanGuard()
    for loss in noise(50):
        guard.jumps(loss)
    reported = [guard.jumps(6.0) for _ in range(60)]
    assert reported[0]
    assert not any(reported[-30:])


def test_what_is_no_jump() -> None:
    falling = [8.0 * 0.97**n + 1.0 for n in range(200)]
    guard = NanGuard()
    assert not any(guard.jumps(loss) for loss in falling)
    steady = NanGuard()
    for _ in range(50):
        steady.jumps(2.0)
    assert not steady.jumps(2.01)  # many deviations of nothing
    assert steady.jumps(2.5)
    assert not any(NanGuard().jumps(loss) for loss in [1.0, 100.0, 1.0, 100.0][:FIRST_LINES])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_number_is_no_jump_and_is_not_remembered(bad: float) -> None:
    guard = NanGuard()
    for loss in noise(20):
        guard.jumps(loss)
    before = NanGuard(**vars(guard))
    assert not guard.jumps(bad)
    assert guard == before


def test_the_usual_loss_is_a_mean_of_many() -> None:
    guard = NanGuard()
    for _ in range(100):
        guard.jumps(1.0)
        guard.jumps(2.0)
    assert 1.3 < guard.mean < 1.7
