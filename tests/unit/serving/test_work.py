"""What is admitted to the queue, in plain numbers: the work that waits and the time it takes."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from transduce.serving import work
from transduce.serving.limits import Limits
from transduce.serving.work import SLOWER, Admission, Speed

RATE = 10.0  # work in a second


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(work, "time", made)
    return made


def admission(limits: Limits | None = None, measured: bool = True) -> Admission:
    made = Admission(limits or Limits(queue_tokens=1000, queue_seconds=30.0, batch_seconds=2.0))
    if measured:
        made.speed.add(1e6, 1e6 / RATE)
    return made


def test_the_wait_is_the_rest_of_the_batch_and_all_that_is_queued(clock: Clock) -> None:
    made = admission()
    assert made.wait == 0.0
    made.queued = 50.0
    assert made.wait == pytest.approx(5.0)
    made.decodes(40.0)
    assert made.wait == pytest.approx(4.0 + 5.0)
    clock.now += 3.0
    assert made.wait == pytest.approx(1.0 + 5.0)
    clock.now += 100.0  # it takes longer than was expected: that shortens nobody's wait
    assert made.wait == pytest.approx(5.0)
    made.decodes(0.0)
    assert made.wait == pytest.approx(5.0)


def test_work_may_wait_as_long_as_it_is_done_in_time(clock: Clock) -> None:
    """At a speed that is lower by SLOWER, and with a batch of one's own at the end."""
    made = admission()
    most = (30.0 - 2.0) / SLOWER * RATE
    made.queued = most - 1.0
    assert made.excess(1.0) == 0.0
    made.queued = most + 10.0
    assert made.excess(1.0) == pytest.approx(SLOWER * 10.0)


def test_the_time_counts_when_it_has_been_measured(clock: Clock) -> None:
    made = admission(measured=False)
    made.queued = 900.0
    made.speed.add(10.0, 1000.0)  # one short sentence: says little
    assert made.excess(50.0) == 0.0
    assert made.room(on_gpu=False) == made.limits.batch_tokens


def test_no_more_waits_than_the_queue_holds_but_one_request_may_be_larger(clock: Clock) -> None:
    made = admission(Limits(queue_tokens=100, queue_seconds=1e6))
    assert made.excess(500.0) == 0.0
    made.queued = 60.0
    assert made.excess(40.0) == 0.0
    assert made.excess(45.0) == 5.0


def test_a_batch_has_the_work_of_its_time(clock: Clock) -> None:
    limits = Limits(batch_tokens=4096, batch_tokens_on_gpu=7000, batch_seconds=2.0)
    assert admission(limits).room(on_gpu=False) == pytest.approx(2.0 * RATE)
    assert admission(limits).room(on_gpu=True) == 7000
    fast = admission(limits, measured=False)
    fast.speed.add(1e6, 1.0)
    assert fast.room(on_gpu=False) == 4096
    hurried = admission(Limits(batch_seconds=2.0, queue_seconds=4.0))
    assert hurried.room(on_gpu=False) == pytest.approx(1.0 * RATE)


def test_the_speed_follows_full_batches_and_hardly_short_ones() -> None:
    speed = Speed(100)
    assert (speed.seconds(5.0), speed.rate, speed.known) == (0.0, 0.0, False)
    speed.add(99.0, 9.9)
    assert not speed.known
    speed.add(2.0, 0.2)
    assert speed.known
    assert speed.rate == pytest.approx(10.0)
    assert speed.seconds(5.0) == pytest.approx(0.5)
    before = speed.rate
    speed.add(1.0, 1.0)
    assert 0.9 * before < speed.rate < before
    for _ in range(40):
        speed.add(100.0, 100.0)
    assert speed.rate == pytest.approx(1.0, rel=0.05)
    speed.add(1e6, 1e5)  # at most half of what was known is forgotten
    assert speed.rate == pytest.approx(10.0, rel=0.05)
