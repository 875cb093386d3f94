"""The rules of padding, begin, end and lengths: every search against brute force.

Networks have few tokens and outputs few places, so that all outputs can be listed; a beam that
holds all of them must find the best in order, and nothing that the rules forbid. Padding and BEGIN
are made the likeliest tokens of all, and END likely from the start.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from slow_params import some_slow
from tiny_models import drawn
from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, UNKNOWN
from transduce.decoding.constraints.constraint import MinLength
from transduce.decoding.cpu.pool import CpuSearch
from transduce.decoding.cuda.graph_slots import Slots
from transduce.decoding.cuda.pool import CudaSearch
from transduce.decoding.search.beam import beam
from transduce.decoding.search.continuous_batching import Job, Search, decode_feed, shape_of
from transduce.decoding.search.greedy import greedy, sample
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.search.rules import NEG_INF, cut, obey
from transduce.decoding.search.stepper import Stepper
from transduce.models import EncoderDecoder
from transduce.runtime import library, why_not
from transduce.runtime.packed_copy import packed
from transduce.runtime.transformer import CTransformerSteps
from trickle import Trickle

TOKENS = 7  # the four specials and three more
GOING_ON = (UNKNOWN, 4, 5, 6)
LONGEST = 3  # with END
EVERY = 21  # outputs of up to two tokens; no step has more candidates

needs_c = pytest.mark.skipif(library() is None, reason=f"no library: {why_not()}")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def network(seed: int) -> EncoderDecoder:
    side = {"layers": 1, "heads": 2, "feed_forward": 16}
    shape = {"width": 16, "dropout": 0.0, "encoder": side, "decoder": side}
    made = drawn({**shape, "tie_embeddings": "none"}, TOKENS)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        made.head.weight.normal_(std=0.7, generator=generator)
        made.head.bias.normal_(std=0.5, generator=generator)
        made.head.bias[[PAD, BEGIN]] += 5.0
        made.head.bias[END] += 2.0 * (seed % 3)
    return made


# ------------------------------------------------------------------------------ brute force


def totals(made: EncoderDecoder, job: Job, minimum: int) -> dict[tuple[int, ...], float]:
    """The log-probability of every output that the rules allow, from whole passes."""
    allowed = [
        tokens
        for length in range(minimum - 1, job.limit)
        for tokens in product(GOING_ON, repeat=length)
    ]
    found = {}
    batch = collate([job.source], None)
    for tokens in allowed:
        given_1T = torch.tensor([[BEGIN, *tokens]])
        logits_1TV = made.logits(batch.source_BS, batch.source_lengths_B, given_1T)
        log_probs_TV = logits_1TV[0].double().log_softmax(dim=-1)
        steps = enumerate((*tokens, END))
        found[tokens] = sum(float(log_probs_TV[step, token]) for step, token in steps)
    return found


def score(tokens: tuple[int, ...], total: float, power: float) -> float:
    return total / ((5 + len(tokens) + 1) / 6) ** power


def greedily(made: EncoderDecoder, job: Job, minimum: int) -> tuple[int, ...]:
    tokens: tuple[int, ...] = ()
    batch = collate([job.source], None)
    while True:
        given_1T = torch.tensor([[BEGIN, *tokens]])
        logits_V = made.logits(batch.source_BS, batch.source_lengths_B, given_1T)[0, -1]
        length = len(tokens) + 1
        possible = [] if length < minimum else [END]
        possible += GOING_ON if length < job.limit else []
        best = max(possible, key=lambda token: float(logits_V[token]))
        if best == END:
            return tokens
        tokens = (*tokens, best)


# --------------------------------------------------------------------------------- searches

Found = list[list[Hypothesis]]


def by_batch(steps: Stepper, jobs: list[Job], settings: Search) -> Found:
    batch = collate([job.source for job in jobs], None)
    limits_B = torch.tensor([job.limit for job in jobs])
    source = (batch.source_BS, batch.source_lengths_B, limits_B)
    shaped = [MinLength(settings.minimum - 1)] if settings.minimum > 1 else []
    if settings.beam == 1:
        return greedy(steps, *source, settings.length_penalty, shaped)
    return beam(steps, *source, settings.beam, settings.nbest, settings.length_penalty, shaped)


def by_torch(made: EncoderDecoder, jobs: list[Job], settings: Search) -> Found:
    return by_batch(made, jobs, settings)


def by_steps_in_c(made: EncoderDecoder, jobs: list[Job], settings: Search) -> Found:
    return by_batch(CTransformerSteps(packed(made, "float32")), jobs, settings)


def by_slots_in_c(made: EncoderDecoder, jobs: list[Job], settings: Search) -> Found:
    feed = Trickle(jobs, [2, 0, 1], {})
    search = CpuSearch(CTransformerSteps(packed(made, "float32")))
    while feed.next < len(jobs):
        decode_feed(search, feed, settings)
    return [feed.found[n] for n in range(len(jobs))]


def by_slots_of_torch(made: EncoderDecoder, jobs: list[Job], settings: Search) -> Found:
    return CudaSearch(made, torch.float32).run(jobs, settings)


def by_slots_on_a_gpu(made: EncoderDecoder, jobs: list[Job], settings: Search) -> Found:
    return CudaSearch(made.cuda(), torch.float32).run(jobs, settings)


class NoRules:
    """Rules that ban nothing: slots with rules read the logits of all tokens."""

    first_time = TOKENS

    def ban(self, logits_RV: Tensor, last: tuple[Tensor, ...], length_R: Tensor) -> None:
        pass


def by_slots_with_rules(made: EncoderDecoder, jobs: list[Job], settings: Search) -> Found:
    device = made.head.weight.device
    batch = collate([job.source for job in jobs], None).to(device)
    slots = Slots(made, shape_of(settings, len(jobs), (8, 8)), NoRules())
    memory = made.encode(batch.source_BS, batch.source_lengths_B)
    places = list(range(len(jobs)))
    slots.fill_encoded(places, memory, (BEGIN,), [job.limit for job in jobs])
    while any(slots.go()):
        pass
    return slots.take(places)


def by_slots_with_rules_on_a_gpu(made: EncoderDecoder, jobs: list[Job], settings: Search) -> Found:
    return by_slots_with_rules(made.cuda(), jobs, settings)


SEARCHES = [
    by_torch,
    pytest.param(by_steps_in_c, marks=needs_c),
    pytest.param(by_slots_in_c, marks=needs_c),
    by_slots_of_torch,
    by_slots_with_rules,
    pytest.param(by_slots_on_a_gpu, marks=needs_gpu),
    pytest.param(by_slots_with_rules_on_a_gpu, marks=needs_gpu),
]


def cases(seed: int) -> tuple[EncoderDecoder, list[Job], int, float]:
    """A network, sources with limits of their own, a minimum length and a length penalty."""
    draw = random.Random(seed)
    minimum = draw.randrange(1, LONGEST + 1)
    jobs = [
        Job(
            [draw.choice(GOING_ON) for _ in range(draw.randrange(1, 6))],
            draw.randrange(minimum, LONGEST + 1),
        )
        for _ in range(4)
    ]
    return network(seed), jobs, minimum, draw.choice((0.0, 0.6, 1.0, 2.0, -0.7))


@cache
def by_brute_force(seed: int) -> tuple[list[dict[tuple[int, ...], float]], list[tuple[int, ...]]]:
    """Of each job every output with its log-probability, and the greedy one: once for all searches,
    from a network that no search has touched."""
    made, jobs, minimum, _ = cases(seed)
    every = [totals(made, job, minimum) for job in jobs]
    return every, [greedily(made, job, minimum) for job in jobs]


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("seed", some_slow(list(range(24)), list(range(6))))
@torch.inference_mode()
def test_every_search_finds_what_brute_force_finds(seed: int, search: Callable[..., Found]) -> None:
    made, jobs, minimum, power = cases(seed)
    every, greedy_found = by_brute_force(seed)
    for nbest in (1, 3, EVERY):
        found = search(made, jobs, Search(EVERY, nbest, power, minimum))
        for hypotheses, allowed in zip(found, every, strict=True):
            ranked = sorted(allowed, key=lambda tokens: -score(tokens, allowed[tokens], power))
            scores = [score(tokens, allowed[tokens], power) for tokens in ranked]
            assert len(hypotheses) == min(nbest, len(ranked))
            assert [h.score for h in hypotheses] == pytest.approx(scores[:nbest], abs=1e-3)
            for hypothesis in hypotheses:
                total = allowed[tuple(hypothesis.tokens)]  # a KeyError: the rules forbid it
                assert hypothesis.log_probability == pytest.approx(total, abs=1e-3)
            if scores[1:] and scores[0] - scores[1] > 1e-3:
                assert tuple(hypotheses[0].tokens) == ranked[0]
    found = search(made, jobs, Search(1, 1, power, minimum))
    assert [tuple(h.tokens) for (h,) in found] == greedy_found


@pytest.mark.parametrize("seed", range(6))
@torch.inference_mode()
def test_samples_are_outputs_that_brute_force_lists(seed: int) -> None:
    made, jobs, minimum, power = cases(seed)
    batch = collate([job.source for job in jobs], None)
    limits_B = torch.tensor([job.limit for job in jobs])
    source = (batch.source_BS, batch.source_lengths_B, limits_B)
    shaped = [MinLength(minimum - 1)]
    settings: dict[str, Any] = {"copies": 16, "length_penalty": power, "constraints": shaped}
    found = sample(made, *source, [seed] * len(jobs), **settings)
    for job, hypotheses in zip(jobs, found, strict=True):
        allowed = totals(made, job, minimum)
        assert len(hypotheses) == 16
        for hypothesis in hypotheses:
            total = allowed[tuple(hypothesis.tokens)]
            assert hypothesis.log_probability == pytest.approx(total, abs=1e-3)
            expected = score(tuple(hypothesis.tokens), total, power)
            assert hypothesis.score == pytest.approx(expected, abs=1e-3)


# ------------------------------------------------------------------------- the rules themselves


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("rowwise", [True, False])
def test_what_is_written_where_a_token_may_not_come(early: bool, rowwise: bool) -> None:
    scores_RV = torch.zeros(2, TOKENS)
    said = torch.tensor([early, early]) if rowwise else early
    obey(scores_RV, said, torch.tensor([False, True]))
    possible = [[t for t in range(TOKENS) if scores_RV[row, t] > NEG_INF] for row in (0, 1)]
    ends = [] if early else [END]
    assert possible == [sorted([*GOING_ON, *ends]), ends]
    assert not math.isnan(float(scores_RV.sum()))


def test_an_output_that_is_cut_does_not_pay_for_its_end() -> None:
    scores_RV = torch.full((3, TOKENS), -2.0)
    scores_RV[:, END] = NEG_INF
    cut(scores_RV, torch.tensor([True, False, True]), torch.tensor([0.0, 1.0, 3.0]))
    assert scores_RV[:, END].tolist() == [0.0, NEG_INF, 3.0]
