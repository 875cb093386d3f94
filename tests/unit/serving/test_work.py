"""What is admitted to the queue, in plain numbers: the work that waits and the time it takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from transduce.serving import work
from transduce.serving.errors import BadRequest, TooLarge
from transduce.serving.jobs import Plan
from transduce.serving.limits import Limits
from transduce.serving.work import SLOWER, Admission, Speed, WorkEstimate
from transduce.tasks.members import NO_MEMBERS

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
    made.queued = 50
    assert made.wait == pytest.approx(5.0)
    made.decodes(40)
    assert made.wait == pytest.approx(4.0 + 5.0)
    clock.now += 3.0
    assert made.wait == pytest.approx(1.0 + 5.0)
    clock.now += 100.0  # it takes longer than was expected: that shortens nobody's wait
    assert made.wait == pytest.approx(5.0)
    made.decodes(0)
    assert made.wait == pytest.approx(5.0)


def test_work_may_wait_as_long_as_it_is_done_in_time(clock: Clock) -> None:
    """At a speed that is lower by SLOWER, and with a batch of one's own at the end."""
    made = admission()
    maximum = (30.0 - 2.0) / SLOWER * RATE
    assert made.excess(1, int(maximum) - 1) == 0.0
    assert made.excess(1, int(maximum) + 11) == pytest.approx(
        SLOWER * (int(maximum) + 11 - maximum)
    )


def test_the_time_counts_when_it_has_been_measured(clock: Clock) -> None:
    made = admission(measured=False)
    made.speed.add(10.0, 1000.0)  # one short sentence: says little
    assert made.excess(50, 900) == 0.0
    assert made.capacity(on_gpu=False) == made.limits.batch_tokens


def test_before_the_speed_is_known_the_queue_holds_so_much_work(clock: Clock) -> None:
    made = admission(Limits(queue_tokens=100, batch_tokens=10), measured=False)
    assert made.excess(40, 60) == 0.0
    assert made.excess(45, 60) == 5.0
    assert made.excess(500, 0) == 0.0  # nothing waits: the next rule is for it
    assert not made.is_too_much(100)
    assert made.is_too_much(101)


def test_a_request_that_alone_takes_too_long_is_refused_itself(clock: Clock) -> None:
    made = admission(Limits(queue_tokens=1, queue_seconds=30.0, batch_tokens=100))
    maximum = int(30 * RATE)
    assert not made.is_too_much(maximum)
    assert made.is_too_much(maximum + 1)
    assert made.excess(maximum, 0) == 0.0
    assert made.excess(maximum, 10) > 0.0  # it has to wait for others, and then takes all the time
    slow = admission(Limits(queue_seconds=1e-6, batch_tokens=100))
    assert not slow.is_too_much(100)  # a batch: its speed is measured anew
    assert slow.is_too_much(101)


def test_what_a_client_asks_for_is_counted_in_whole_numbers(clock: Clock) -> None:
    estimate = WorkEstimate(0.3)
    served: Any = SimpleNamespace(takes_audio=False, model=None, members=NO_MEMBERS)
    text, limits = "0123456789", Limits(characters=10, texts=3, outputs=6)

    def costs(plan: dict[str, Any], inputs: list[str], **constraints: list[Any]) -> list[int]:
        made = Plan(served, None, {}, **plan)
        found = estimate.costs(inputs, made, constraints, limits)
        assert all(type(one) is int for one in found)
        return found

    assert costs({}, [text, ""]) == [4, 1]
    assert costs({"width": 5}, [text]) == [20]
    assert costs({"minimum": 50, "width": 2}, [text]) == [100]
    assert costs({}, [text], prefix=[text]) == [8]
    assert costs({}, [text], target=[text]) == [8]
    assert costs({"width": 3}, [text], include=[[text, text]]) == [4 * 8]
    assert costs({"width": 30}, [text], include=[[text]]) == [4 * 30]
    assert len(costs({"nbest": 2}, [text] * 3)) == 3
    for wrong, said in (
        (lambda: costs({}, [text] * 4), "4 inputs; the maximum is 3"),
        (lambda: costs({"nbest": 3}, [text] * 3), "9 outputs; the maximum is 6"),
        (lambda: costs({}, [text + "x"]), "11 characters; the maximum is 10"),
        (lambda: costs({}, [text], target=[text + "x"]), "11 characters"),
    ):
        with pytest.raises(TooLarge, match=said):
            wrong()
    with pytest.raises(BadRequest, match="must be text, not int"):
        costs({}, [3])  # type: ignore[list-item]


def test_a_batch_has_the_work_of_its_time(clock: Clock) -> None:
    limits = Limits(batch_tokens=4096, batch_tokens_on_gpu=7000, batch_seconds=2.0)
    assert admission(limits).capacity(on_gpu=False) == pytest.approx(2.0 * RATE)
    assert admission(limits).capacity(on_gpu=True) == 7000
    fast = admission(limits, measured=False)
    fast.speed.add(1e6, 1.0)
    assert fast.capacity(on_gpu=False) == 4096
    hurried = admission(Limits(batch_seconds=2.0, queue_seconds=4.0))
    assert hurried.capacity(on_gpu=False) == pytest.approx(1.0 * RATE)


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
