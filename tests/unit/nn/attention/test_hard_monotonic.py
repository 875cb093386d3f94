"""The forward algorithm of hard monotonic attention against a sum over all alignments."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from torch import Tensor

from transduce.nn.attention.hard_monotonic import NEVER, align, marginal


def by_all_alignments(scores_TS: Tensor, emission_TSV: Tensor, written: list[int]) -> float:
    """p(y | x), term by term."""
    T, S = scores_TS.shape
    total = 0.0
    for places in product(range(S), repeat=T):
        if list(places) != sorted(places):
            continue
        probability, before = 1.0, 0
        for step, place in enumerate(places):
            ahead_S = scores_TS[step, before:].softmax(dim=0)
            probability *= float(ahead_S[place - before])
            probability *= float(emission_TSV[step, place, written[step]].exp())
            before = place
        total += probability
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_forward_algorithm_sums_all_alignments(seed: int) -> None:
    torch.manual_seed(seed)
    T, S, V = 4, 4, 3
    scores_TS = 2 * torch.randn(T, S, dtype=torch.float64)
    emission_TSV = torch.randn(T, S, V, dtype=torch.float64).mul(2).log_softmax(dim=-1)
    for written in ([0, 1, 2, 0], [2, 2, 1, 1]):
        emitted_TS = torch.stack([emission_TSV[t, :, token] for t, token in enumerate(written)])
        prior_1TS = align(scores_TS[None], emitted_TS[None])
        log_probs_TV = marginal(prior_1TS, emission_TSV[None])[0]
        found = sum(float(log_probs_TV[t, token]) for t, token in enumerate(written))
        expected = by_all_alignments(scores_TS, emission_TSV, written)
        assert found == pytest.approx(math.log(expected), abs=1e-9)
        torch.testing.assert_close(prior_1TS.exp().sum(dim=-1), torch.ones(1, T).double())


def test_padding_changes_nothing_and_gradients_are_finite() -> None:
    torch.manual_seed(1)
    scores_1TS = torch.randn(1, 3, 2)
    emission_1TSV = torch.randn(1, 3, 2, 4).log_softmax(dim=-1)
    prior_1TS = align(scores_1TS, emission_1TSV[..., 1])
    padded_1TS = torch.cat([scores_1TS, torch.full((1, 3, 2), NEVER)], dim=2).requires_grad_()
    more_1TSV = torch.cat([emission_1TSV, torch.randn(1, 3, 2, 4)], dim=2)
    longer_1TS = align(padded_1TS, more_1TSV[..., 1])
    torch.testing.assert_close(longer_1TS[..., :2], prior_1TS)
    found_1TV = marginal(longer_1TS, more_1TSV)
    torch.testing.assert_close(found_1TV, marginal(prior_1TS, emission_1TSV))
    found_1TV[..., 2].sum().backward()
    assert padded_1TS.grad is not None
    assert bool(padded_1TS.grad.isfinite().all())
