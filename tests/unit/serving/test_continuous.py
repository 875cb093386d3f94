"""Which requests enter a continuous batch, and what counts as under way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tiny_models import tiny
from transduce.decoding.output import Output
from transduce.serving import continuous
from transduce.serving.batch import Batch
from transduce.serving.continuous import ContinuousBatch
from transduce.serving.engine import Engine
from transduce.serving.jobs import RUN, Plan
from transduce.serving.limits import Limits
from transduce.serving.models import Catalogue, Served

DONE = Output("", 0.0)


def job(plan: Any, *costs: float, watched: Any = None, constraints: Any = None) -> Any:
    inputs = [f"{cost:g}" for cost in costs]
    return SimpleNamespace(
        plan=plan,
        costs=list(costs),
        inputs=inputs,
        next=0,
        started=None,
        cancelled=False,
        watched=watched,
        constraints=constraints or {},
    )


def growing(asked: list[float], *entries: Any) -> ContinuousBatch:
    """A batch that notes the work under way whenever it asks for more."""

    def take(plan: Any, under_way: float) -> list[Any]:
        asked.append(under_way)
        return []

    return ContinuousBatch(Batch(entries[0][0].plan, list(entries)), take, lambda found: None)


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
    monkeypatch.setattr(continuous, "MOST", 1)
    asked: list[float] = []
    batch = growing(asked, (job(None, 2.0), 0))
    batch.more()
    assert batch.more() == []
    assert asked == []


def test_who_may_join() -> None:
    served = Served.of("tiny", tiny())
    engine = Engine(Catalogue([served]), Limits(batch_tokens=100))  # a CPU's room here
    plan, another = Plan(served, 1, {}, call=RUN), Plan(served, 2, {}, call=RUN)
    small = [job(plan, 40.0) for _ in range(4)]

    def joined(under_way: float, *waiting: Any) -> list[Any]:
        for one in waiting:
            one.next = 0
        engine._waiting = list(waiting)
        return [one for one, _ in engine._more(plan, under_way)]

    assert joined(0.0) == []
    assert joined(0.0, *small) == small[:2]  # as many as there is room for
    assert joined(50.0, *small) == small[:1]
    assert joined(100.0, *small) == []
    assert joined(0.0, job(another, 1.0), *small) == []  # it has waited longest
    assert joined(0.0, job(plan, 1.0, watched=(0, False)), *small) == []
    stream, phrase = job(plan, 1.0, watched=(0, False)), job(plan, 1.0, constraints={"prefix": 1})
    assert joined(0.0, small[0], stream, phrase, small[1]) == small[:2]
    assert engine._waiting == [stream, phrase]
