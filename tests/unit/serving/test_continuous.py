"""Which requests enter a continuous batch, and what counts as under way."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tiny_models import tiny
from transduce.decoding.output import Output
from transduce.serving.batch import ContinuousBatch
from transduce.serving.errors import Unready
from transduce.serving.jobs import RUN, Plan
from transduce.serving.limits import Limits
from transduce.serving.models import Catalogue, Served
from transduce.serving.scheduler import NICE, Scheduler, _yield_to_others

DONE = Output("", 0.0)


class Waiting(SimpleNamespace):
    __eq__, __hash__ = object.__eq__, object.__hash__


def job(plan: Any, *costs: float, watched: Any = None, constraints: Any = None) -> Any:
    inputs = [f"{cost:g}" for cost in costs]
    return Waiting(
        plan=plan,
        costs=list(costs),
        rest=sum(costs),
        inputs=inputs,
        next=0,
        started=None,
        cancelled=False,
        watched=watched,
        constraints=constraints or {},
    )


def growing(asked: list[float], *entries: Any, plan: Any = None) -> ContinuousBatch:
    """A batch that notes the work under way whenever it asks for more."""

    def take(batch: ContinuousBatch) -> list[Any]:
        asked.append(batch.cost)
        return []

    return ContinuousBatch(plan, list(entries), take, lambda batch, found: None)


def test_what_is_under_way_is_what_has_no_output_and_a_client() -> None:
    one, other = job(None, 2.0, 3.0), job(None, 7.0)
    asked: list[float] = []
    batch = growing(asked, (one, 0), (one, 1), (other, 0))
    assert batch.more() == [(0, "2"), (1, "3"), (2, "7")]
    batch.more()
    batch.done([(0, DONE)])
    batch.more()
    assert [number for _, number in batch.unfinished.entries] == [1, 0]
    batch.drop(other)
    batch.more()  # it sees now that the client is gone
    batch.more()
    assert asked == [12.0, 10.0, 10.0, 3.0]
    assert batch.unfinished.entries == [(one, 1)]


def test_a_client_that_left_before_it_entered_is_not_decoded() -> None:
    one = job(None, 2.0)
    batch = growing([], (one, 0))
    one.cancelled = True
    assert batch.more() == []


def test_a_batch_comes_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transduce.serving.batch.MAX_ENTRIES", 1)
    asked: list[float] = []
    batch = growing(asked, (job(None, 2.0), 0))
    batch.more()
    assert batch.more() == []
    assert asked == []


def scheduler(served: Served, threads: int) -> Scheduler:
    """A scheduler whose threads are not started."""
    limits = Limits(batch_tokens=100)  # a CPU's room
    made = Scheduler(Catalogue([served]), limits, {}, lambda *_: None, lambda *_: None)
    made.max_threads = threads
    return made


def test_who_may_join() -> None:
    served = Served.of("tiny", tiny())
    made = scheduler(served, 1)
    plan, another = Plan(served, 1, {}, call=RUN), Plan(served, 2, {}, call=RUN)
    small = [job(plan, 40.0) for _ in range(4)]

    def joined(under_way: float, *waiting: Any) -> list[Any]:
        for one in waiting:
            one.next, one.rest = 0, sum(one.costs)
        batch = growing([], *([(job(plan, under_way), 0)] if under_way else []), plan=plan)
        made._batches = [batch]
        made._waiting = list(waiting)
        return [one for one, _ in made._more(batch)]

    assert joined(0.0) == []
    assert joined(0.0, *small) == small[:2]  # as many as there is room for
    assert joined(50.0, *small) == small[:1]
    assert joined(100.0, *small) == []
    assert joined(0.0, job(another, 1.0), *small) == []  # it has waited longest
    assert joined(0.0, job(plan, 1.0, watched=(0, False)), *small) == []
    stream, phrase = job(plan, 1.0, watched=(0, False)), job(plan, 1.0, constraints={"prefix": 1})
    assert joined(0.0, small[0], stream, phrase, small[1]) == small[:2]
    assert made._waiting == [stream, phrase]


def test_threads_have_equal_shares() -> None:
    served = Served.of("tiny", tiny())
    made = scheduler(served, 2)
    plan = Plan(served, 1, {}, call=RUN)
    made._waiting = [job(plan, 1.0, 1.0, 1.0) for _ in range(3)]
    first = made._begin(made._waiting[0])
    assert len(first.entries) == 5  # of nine, half and one more
    second = made._begin(made._waiting[0])
    assert len(second.entries) == 4
    assert isinstance(second, ContinuousBatch)
    second.done([(0, DONE), (1, DONE)])
    made._waiting = [job(plan, 1.0)]
    assert made._more(first) == []  # the other has fewer
    assert [one.plan for one, _ in made._more(second)] == [plan]


def test_threads_have_no_more_work_together_than_one_would_have() -> None:
    served = Served.of("tiny", tiny())
    made = scheduler(served, 2)  # with room for 100
    plan = Plan(served, 1, {}, call=RUN)
    made._waiting = [job(plan, 25.0) for _ in range(9)]
    first = made._begin(made._waiting[0])
    assert [len(first.entries), len(made._begin(made._waiting[0]).entries)] == [2, 2]
    assert isinstance(first, ContinuousBatch)
    assert made._more(first) == []
    first.done([(0, DONE)])
    assert len(made._more(first)) == 1


def test_one_batch_is_decoded_as_a_whole_at_a_time() -> None:
    served = Served.of("tiny", tiny())
    made = scheduler(served, 2)
    plan = Plan(served, 1, {}, call=RUN)
    whole, other = (job(plan, 1.0, watched=(0, False)) for _ in range(2))
    made._waiting = [whole, other]
    batch = made._begin(whole)
    made._waiting = [other]
    assert made._next() is None
    made._waiting.append(plain := job(plan, 1.0))
    assert made._next() is plain
    assert made._share(0) == 1  # one thread is left
    with made._condition:
        made._replace(batch)
    assert made._next() is other


def test_requests_take_turns_also_those_of_other_settings() -> None:
    """A large one does not hold up a small one until its end."""
    served = Served.of("tiny", tiny())
    made = scheduler(served, 1)  # with room for 100
    large = job(Plan(served, 1, {}, call=RUN), *[60.0] * 5)
    small = job(Plan(served, 2, {}, call=RUN), 10.0)
    made._waiting = [large, small]
    assert [one.entries for one in (made._begin(large),)] == [[(large, 0)]]
    assert made._next() is small
    assert made._begin(small).entries == [(small, 0)]
    assert made._next() is large
    assert made._begin(large).entries == [(large, 1)]
    assert (large.rest, small.rest) == (180.0, 0.0)


def test_no_more_of_a_large_request_is_ahead_than_its_turns() -> None:
    served = Served.of("tiny", tiny())
    made = scheduler(served, 1)
    plan = Plan(served, 1, {}, call=RUN)
    made._waiting = [job(plan, *[60] * 50), job(plan, 30)]
    assert made.ahead(10) == 100 + 30  # a batch of it
    assert made.ahead(500) == 500 + 30
    assert made.ahead(10_000) == 3000 + 30
    made._waiting = []
    assert made.ahead(10) == 0


def test_what_is_dropped_leaves_the_queue_exactly_empty() -> None:
    served = Served.of("tiny", tiny())
    made = scheduler(served, 1)
    plan = Plan(served, 1, {}, call=RUN)
    one, other = job(plan, 60, 60, 60), job(plan, 7)
    made._waiting = [one, other]
    made.admission.queued = one.rest + other.rest
    made._begin(one)
    assert made.admission.queued == one.rest + other.rest > 0
    made.drop(one)
    made.drop(one)
    made.drop(other)
    assert (made.admission.queued, made._waiting, one.rest) == (0, [], 0)


def test_nothing_is_submitted_to_threads_that_end() -> None:
    served = Served.of("tiny", tiny())
    made = scheduler(served, 1)
    waiting = job(Plan(served, 1, {}, call=RUN), 1.0)
    made._waiting = [waiting]
    assert made.stop() == [waiting]
    with pytest.raises(Unready, match="stopping"):
        made.submit(job(waiting.plan, 1.0))


def test_speed_is_that_of_all_threads_together(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    own = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("transduce.serving.scheduler.time", own)
    served = Served.of("tiny", tiny())
    made = scheduler(served, 2)
    plan = Plan(served, 1, {}, call=RUN)
    shared: list[int] = []
    monkeypatch.setattr("transduce.serving.scheduler.share_threads", shared.append)
    for start in (0.0, 100.0):  # a pause between them does not count
        clock.now = start
        made._waiting = [job(plan, 10.0, 10.0)]
        with made._condition:
            batches = [made._begin(made._waiting[0]) for _ in range(2)]
        for batch in batches:  # one second after the other
            clock.now += 1.0
            made._done(batch, [DONE])
            with made._condition:
                made._replace(batch)
    assert made.admission.speed.rate == pytest.approx(10.0)
    assert shared == [1, 2, 1, 1] * 2  # the cores are divided among those at work


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_threads_that_decode_have_a_lower_priority() -> None:
    found: list[int] = []

    def look() -> None:
        _yield_to_others()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [min(19, own + NICE)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own


def test_a_batch_numbers_what_joins_it() -> None:
    one, two, three = job(None, 1.0), job(None, 2.0, 3.0), job(None, 4.0)
    later = [[(two, 0), (two, 1)], [(three, 0)], []]
    delivered: list[Any] = []
    batch = ContinuousBatch(
        None, [(one, 0)], lambda _: later.pop(0), lambda _, found: delivered.extend(found)
    )
    assert batch.more() == [(0, "1")]
    assert batch.more() == [(1, "2"), (2, "3")]
    assert batch.more() == [(3, "4")]
    batch.done([(2, DONE), (3, DONE)])
    assert delivered == [((two, 1), DONE), ((three, 0), DONE)]
    assert batch.cost == 3.0
