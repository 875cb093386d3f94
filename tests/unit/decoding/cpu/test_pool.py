"""Search over slots on a CPU gives the hypotheses that each sentence gets alone, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tiny_models import drawn
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import END
from transduce.decoding.constraints.constraint import MinLength
from transduce.decoding.cpu import pool
from transduce.decoding.cpu.pool import CpuSearch, decode_batch
from transduce.decoding.search.beam import beam
from transduce.decoding.search.continuous_batching import Job, Search, decode_feed
from transduce.decoding.search.greedy import greedy
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.search.observer import SearchObserver
from transduce.runtime import library, why_not
from transduce.runtime.packed_copy import packed
from transduce.runtime.structures import MAX_BEAM
from transduce.runtime.transformer import CTransformerSteps
from trickle import Trickle

pytestmark = pytest.mark.skipif(library() is None, reason=f"no library: {why_not()}")

V = 23
SHAPES: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_position": "post"},
    "rotary": {"positions": "rotary"},
    "learned": {"positions": "learned", "max_positions": 64},
    "no positions": {"positions": "none"},
}


def steps(
    kind: str = "float32", tokens: int = V, twins: bool = False, **parts: Any
) -> CTransformerSteps:
    """twins: each token has another one that is always as likely."""
    side = {"layers": 2, "heads": 2, "feed_forward": 16, **parts}
    shape = {
        "width": 16,
        "dropout": 0.0,
        "encoder": side,
        "decoder": side,
        "tie_embeddings": "none",
    }
    network = drawn(shape, tokens)
    for parameter in network.parameters():
        parameter.data *= 3.0 if parameter.dim() > 1 else 1.0
    network.head.bias.data[END] = 8.0  # some outputs end at once, some later, some at their limit
    if twins:
        for parameter in (network.head.weight, network.head.bias):
            parameter.data[5::2] = parameter.data[4:-1:2]
    return CTransformerSteps(packed(network, kind))


def jobs(count: int, tokens: int = V) -> list[Job]:
    draw = random.Random(4)
    return [
        Job(
            [draw.randrange(4, tokens) for _ in range(draw.randrange(1, 40))], draw.randrange(1, 40)
        )
        for _ in range(count)
    ]


def alone(made: CTransformerSteps, job: Job, settings: Search) -> list[Hypothesis]:
    batch = collate([job.source], None)
    source = (batch.source_BS, batch.source_lengths_B, torch.tensor([job.limit]))
    shaped = [MinLength(settings.minimum - 1)] if settings.minimum > 1 else []
    power = settings.length_penalty
    if settings.beam == 1:
        return greedy(made, *source, power, shaped)[0]
    found = beam(
        made, *source, settings.beam, settings.nbest, power, shaped, patience=settings.patience
    )
    return found[0]


def check(made: CTransformerSteps, settings: Search, tokens: int = V) -> None:
    every = jobs(30, tokens)
    feed = Trickle(every, [1, 0, 2, 11, 1, 0, 0, 3], {})
    while feed.next < len(every):  # it ends whenever there is nothing to do
        decode_feed(CpuSearch(made), feed, settings)
    if settings.beam > 1:
        assert feed.max_beside > 0  # some entered while others were under way
    assert [feed.found[n] for n in range(30)] == [alone(made, job, settings) for job in every]


@pytest.fixture(autouse=True)
def a_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "AT_ONCE", (1, 0.0))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 3])
@torch.inference_mode()
def test_whoever_is_there_already(shape: str, size: int) -> None:
    check(steps(**SHAPES[shape]), Search(size, 1, 0.8, patience=1.0))


@pytest.mark.parametrize(
    "settings",
    [
        Search(4, 4, 1.0, patience=1.0),
        Search(4, 2, 0.0, patience=None),
        Search(5, 3, 1.5, patience=2.0),
        Search(1, 1, 1.0, minimum=7),
        Search(3, 2, 1.0, minimum=7, patience=1.0),
        Search(2, 4, 1.0, patience=1.0),
    ],
)
@torch.inference_mode()
def test_with_all_settings(settings: Search) -> None:
    check(steps(), settings)


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("settings", [Search(), Search(4, 2, 0.6, minimum=3, patience=1.0)])
@torch.inference_mode()
def test_a_batch_at_once(settings: Search, kind: str) -> None:
    made, every = steps(kind), jobs(12)
    found = decode_batch(made, every, settings)
    assert found == [alone(made, job, settings) for job in every]


@torch.inference_mode()
def test_a_job_of_a_batch_is_cancelled() -> None:
    """It ends at once, without an output; the others are as they were."""

    class Cancels(SearchObserver):
        def cancelled(self) -> list[int]:
            return [1]

    made, settings = steps(), Search(minimum=30)
    every = [Job([5, 6, 7], 40), Job([8, 9], 40), Job([4], 35)]
    first, gone, last = decode_batch(made, every, settings, Cancels())
    assert gone == []
    assert [first, last] == [alone(made, job, settings) for job in (every[0], every[2])]


@torch.inference_mode()
def test_outputs_longer_than_their_sources() -> None:
    """The scratch memory of a step is enough for the longest of its rows, whichever it is."""
    made, settings = steps(), Search(2, 1, 1.0, minimum=90, patience=1.0)
    every = [Job([5, 6, 7], 120), Job([8], 110), Job([9, 5], 100)]
    feed = Trickle(every, [1, *[0] * 80, 1, 0, 1], {})
    decode_feed(CpuSearch(made), feed, settings)
    assert [feed.found[n] for n in range(3)] == [alone(made, job, settings) for job in every]


@torch.inference_mode()
def test_of_equal_scores_the_first() -> None:
    check(steps(twins=True), Search(3, 3, 1.0, patience=None))


@torch.inference_mode()
def test_int8() -> None:
    check(steps("int8"), Search(3, 2, 1.0, patience=1.0))


@torch.inference_mode()
def test_fewer_tokens_than_candidates() -> None:
    check(steps(tokens=6), Search(5, 2, 1.0, patience=None), tokens=6)


@torch.inference_mode()
def test_a_pool_without_room_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "SIZES", (2, 3))
    check(steps(), Search(3, 1, 1.0, patience=0.4))  # it stops while hypotheses are open


@torch.inference_mode()
def test_many_steps_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "AT_ONCE", (1000, 0.0))
    every, made, settings = jobs(12), steps(), Search(3, 1, 1.0, patience=1.0)
    feed = Trickle(every, [12], {})
    decode_feed(CpuSearch(made), feed, settings)
    assert [feed.found[n] for n in range(12)] == [alone(made, job, settings) for job in every]


@torch.inference_mode()
def test_a_cancelled_job_frees_its_slot() -> None:
    """The long one would take hundreds of steps; nobody waits for it."""
    feed = Trickle([Job([5], 500), Job([6], 500)], [2], {0: 2, 1: 2})
    decode_feed(CpuSearch(steps()), feed, Search(minimum=500))
    assert feed.found == {}
    assert feed.looks < 8


@pytest.mark.parametrize("size", [1, 3])
@torch.inference_mode()
def test_weights_that_are_no_numbers(size: int) -> None:
    """There is no hypothesis, and it ends."""
    made = steps()
    made.network.decoder.norm.weight.data.fill_(torch.nan)
    spoilt = CTransformerSteps(made.network)
    feed = Trickle(jobs(3), [3], {})
    decode_feed(CpuSearch(spoilt), feed, Search(size, 1, 1.0, patience=1.0))
    assert feed.found == {0: [], 1: [], 2: []}


def test_a_beam_that_is_too_wide_is_left_to_others() -> None:
    search = CpuSearch(steps())
    assert search.takes(Search(MAX_BEAM))
    assert not search.takes(Search(MAX_BEAM + 1))
    assert not search.takes(Search(1, MAX_BEAM + 1))
