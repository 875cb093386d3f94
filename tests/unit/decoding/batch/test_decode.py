"""Packing by memory, limits that follow the wishes, and what happens when memory runs out."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from transduce.data.tokens.tokenizer import END
from transduce.decoding.batch import decode
from transduce.decoding.batch.decode import BatchDecoder, Bounds, Request, pack, pack_evenly
from transduce.decoding.search.continuous_batching import Job, Search
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.settings import Settings


class Echo:
    """Ends at once, and notes the shape of each batch; a row too many is too much."""

    def __init__(self, maximum: int = 10**9) -> None:
        self.maximum = maximum
        self.shapes: list[tuple[int, int]] = []
        self.steps: list[int] = []

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> Any:
        self.shapes.append((source_BS.shape[0], source_BS.shape[1]))
        if source_BS.numel() > self.maximum:
            raise torch.OutOfMemoryError("too much")
        return self

    def step(self, tokens_B: Tensor, state: Any) -> tuple[Tensor, Any]:
        self.steps.append(len(tokens_B))
        log_probs_BV = torch.full((len(tokens_B), 9), -5.0)
        log_probs_BV[:, END] = -0.1
        return log_probs_BV, state

    def reorder(self, index_B: Tensor) -> None: ...


def task(model: Any, capacity: int = 10**6, **settings: Any) -> BatchDecoder:
    chosen = Settings(**{"beam": 1, "length_penalty": 0.0, "coverage_penalty": 0.0, **settings})
    return BatchDecoder(model, chosen, Bounds(2.0, 3, capacity), torch.device("cpu"))


sizes = st.lists(st.integers(1, 50), max_size=40)


@given(sizes=sizes, budget=st.integers(1, 200))
def test_batches_hold_all_once_and_keep_to_the_budget(sizes: list[int], budget: int) -> None:
    batches = list(pack(range(len(sizes)), sizes, budget))
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    for batch in batches:
        largest = max(sizes[i] for i in batch)
        assert len(batch) == 1 or largest * len(batch) <= budget
    for one, following in pairwise(batches):
        assert min(sizes[i] for i in one) >= max(sizes[i] for i in following)
        # No batch could have taken one more.
        assert max(sizes[i] for i in one) * (len(one) + 1) > budget


@given(sizes=sizes, several=st.integers(1, 20), minimum=st.integers(1, 100))
def test_even_batches(sizes: list[int], several: int, minimum: int) -> None:
    batches = list(pack_evenly(range(len(sizes)), sizes, several, minimum))
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    assert len(batches) <= several
    alike = list(pack_evenly(range(len(sizes)), [7] * len(sizes), several))
    assert max(map(len, alike), default=0) <= -(-len(sizes) // several) * 33 / 32 + 1


@given(sizes=sizes, several=st.integers(1, 20), maximum=st.integers(1, 200))
def test_even_batches_are_bounded_padding_and_all(
    sizes: list[int], several: int, maximum: int
) -> None:
    batches = list(pack_evenly(range(len(sizes)), sizes, several, maximum=maximum))
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    for batch in batches:
        assert len(batch) == 1 or max(sizes[i] for i in batch) * len(batch) <= maximum


def test_a_long_source_does_not_pad_a_few_short_ones() -> None:
    model = Echo()
    requests = [Request([4] * 5)] * 8 + [Request([4] * 4000)]
    task(model).run(requests)
    assert model.shapes == [(1, 4001), (8, 6)]


def test_hypotheses_and_targets_count_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "PLACES_ON_CPU", 1000)
    requests = [Request([4] * 9)] * 30  # 10 of source and 23 of target
    counted = {}
    for beam in (1, 4):
        model = Echo()
        task(model, beam=beam).run(requests)
        counted[beam] = max(rows for rows, _ in model.shapes)
    assert counted == {1: 30, 4: 8}  # one batch of 990 places; four, as 3,960 are about 4 x 1000


def test_a_very_long_source_is_alone_and_the_others_are_not() -> None:
    model = Echo()
    requests = [Request([4] * 5)] * 50 + [Request([4] * 60_000)] + [Request([4] * 5)] * 50
    found = task(model).run(requests)
    assert all(of_one[0].tokens == [] for of_one in found)
    assert model.shapes == [(1, 60_001), (100, 6)]


def test_where_memory_runs_out_batches_are_halved_and_only_the_impossible_is_given_up() -> None:
    model = Echo(maximum=100)
    requests = [Request([4] * 9)] * 25 + [Request([4] * 200)] + [Request([4] * 3)] * 5
    doing = task(model)
    found = doing.run(requests)
    assert [bool(of_one) for of_one in found] == [True] * 25 + [False] + [True] * 5
    assert list(doing.failed) == [25]
    assert "200 tokens" in doing.failed[25]


def test_a_neighbours_phrases_do_not_widen_a_beam() -> None:
    model = Echo()
    requests = [
        Request([4] * 3),
        Request([4] * 3, include=[[[5, 6, 7]], [[8], [5, 5, 5]]]),
        Request([4] * 3),
    ]
    task(model, beam=2, min_length=1).run(requests)
    assert [rows for rows, _ in model.shapes] == [2, 1]
    assert model.steps[:2] == [2, 4]  # hypotheses of a source begin as one
    assert model.steps[2:4] == [1, 5]  # a bank for each of 0 to 4 tokens


class Loop(Echo):
    """One token again and again is likely; END is possible."""

    def step(self, tokens_B: Tensor, state: Any) -> tuple[Tensor, Any]:
        log_probs_BV = torch.full((len(tokens_B), 9), -20.0)
        log_probs_BV[:, 5], log_probs_BV[:, END] = -0.1, -2.3
        return log_probs_BV, state


def test_patience_ends_a_beam_search() -> None:
    lengths = []
    for patience in (None, 1.0, 4.0):
        ((found,),) = task(Loop(), beam=2, length_penalty=1.0, patience=patience).run(
            [Request([4] * 20)]
        )
        lengths.append(len(found.tokens))
    assert lengths == [44, 1, 7]  # 44 and END are the most for 20 tokens and END


def test_the_search_by_slots_gets_every_setting() -> None:
    asked: list[tuple[list[Job], Search | None]] = []

    class Fast:
        max_beam = 9

        def run(self, jobs: Any, settings: Search | None = None) -> Any:
            asked.append((list(jobs), settings))
            return [[Hypothesis([5], -1.0, -1.0)] for _ in jobs]

        def free(self) -> None: ...

    given = {"beam": 3, "nbest": 2, "length_penalty": 0.6, "min_length": 4, "patience": 0.7}
    doing = replace(task(Echo(), **given), fast=Fast())
    (found,) = doing.run([Request([4] * 3)])
    assert found[0].tokens == [5]
    assert asked == [([Job([4] * 3, 11)], Search(3, 2, 0.6, 5, 0.7))]


@pytest.fixture
def bounds() -> Bounds:
    return Bounds(2.0, 3, 20)


def test_limits_leave_room_for_what_was_asked(bounds: Bounds) -> None:
    assert bounds.limit(Request([4, 4]), 0) == 9
    assert bounds.limit(Request([4] * 30), 0) == 20
    assert bounds.limit(Request([4], prefix=[5] * 9, include=[[[6, 6]]]), 0) == 15
    assert bounds.limit(Request([4]), 12) == 16
    assert bounds.limit(Request([4], prefix=[5] * 19), 0) == 20
    assert Bounds(0.1, 0, 20).limit(Request([4]), 0) == 1


def test_what_has_no_room_is_said_and_the_rest_goes_on() -> None:
    doing = task(Echo(), capacity=6)
    fits, not_ = Request([4], prefix=[5] * 5), Request([4], prefix=[5] * 4, include=[[[6, 6]]])
    found = doing.run([fits, not_, Request([4])])
    assert [len(of_one) for of_one in found] == [1, 0, 1]
    assert found[0][0].tokens == [5] * 5
    assert "positions for (6" in doing.failed[1]


def test_what_a_source_takes_beside_its_hypotheses_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as CTC's probabilities of every token at every state, which all hypotheses share."""
    monkeypatch.setattr(decode, "PLACES_ON_CPU", 1000)
    requests = [Request([5] * 9) for _ in range(40)]  # 10 states and 23 places to write into
    for state_bytes, batches in ((0, 1), (10 * decode.BYTES, 5)):
        model = Echo()
        replace(task(model), state_bytes=state_bytes).run(requests)
        assert len(model.shapes) == batches
    assert task(Echo(), beam=4)._places(requests[0]) == 4 * 33
    beside = replace(task(Echo(), beam=4), state_bytes=decode.BYTES)
    assert beside._places(requests[0]) == 4 * 33 + 10
