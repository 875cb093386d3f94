"""Alarms over made-up hypotheses and attention: they ring when they should, and not otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from transduce.decoding.speech.warnings import (
    Loop,
    diagonality,
    find_loop,
    skipped_spans,
    visited_by_tokens,
)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([5] * 12, Loop(0, 1, 12)),
        ([5] * 11, None),
        ([1, 2, 3] + [7, 8, 9, 6] * 3 + [4], Loop(3, 4, 3)),
        ([1, 2, 3] + [7, 8, 9, 6] * 2 + [7, 8, 9] + [4], None),
        ([1] + [7, 8, 9, 6] * 5 + [7, 8], Loop(1, 4, 5)),
        ([0, 1] * 6, Loop(0, 2, 6)),
        (list(range(50)), None),
        ([], None),
        ([3], None),
        ([1, 1, 1, 2, *range(10, 30)], None),
    ],
)
def test_loops(tokens: list[int], expected: Loop | None) -> None:
    assert find_loop(tokens) == expected


def test_the_loop_that_covers_most_is_reported() -> None:
    tokens = [5] * 13 + list(range(20, 40)) + [1, 2, 3, 4, 6] * 6
    assert find_loop(tokens) == Loop(33, 5, 6)


def test_text_without_loops_raises_no_alarm() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        assert find_loop(draw.integers(0, 5, size=60).tolist()) is None


def attention(path: list[float], S: int, width: float = 1.5) -> Tensor:
    """A row for each token, a bump around the frame it attends to."""
    place_S = torch.arange(S)
    scores_TS = -((place_S - torch.tensor(path)[:, None]) ** 2) / (2 * width**2)
    return scores_TS.softmax(dim=1)


def test_stretches_at_both_ends() -> None:
    visited_S = torch.zeros(300, dtype=torch.bool)
    visited_S[100:150] = True
    loud = torch.ones(300, dtype=torch.bool)
    assert skipped_spans(visited_S, loud, maximum=99) == [(0, 100), (150, 300)]
    assert skipped_spans(visited_S, loud, maximum=100) == [(150, 300)]
    assert skipped_spans(torch.zeros(300, dtype=torch.bool), loud) == [(0, 300)]
    assert skipped_spans(torch.ones(300, dtype=torch.bool), loud) == []


def test_an_alignment_that_leaves_sound_out() -> None:
    first_U, last_U = torch.tensor([10, 20, -1, 120, 130]), torch.tensor([11, 20, -1, 125, 130])
    visited_S = visited_by_tokens(first_U, last_U, 150, reach=5)
    expected = torch.zeros(150, dtype=torch.bool)
    expected[5:26] = expected[115:136] = True
    assert torch.equal(visited_S, expected)
    assert skipped_spans(visited_S, torch.ones(150, dtype=torch.bool)) == [(26, 115)]


def one(weights_TS: Tensor) -> float:
    T, S = weights_TS.shape
    return diagonality(weights_TS[None, None], torch.tensor([T]), torch.tensor([S])).item()


def test_what_is_diagonal() -> None:
    steady = torch.linspace(0, 199, 40)
    assert one(attention(steady.tolist(), 200)) > 0.99
    bent = 199 * torch.linspace(0, 1, 40) ** 2
    assert one(attention(bent.tolist(), 200)) > 0.95
    assert one(attention(steady.tolist(), 200, width=10.0)) > 0.95
    assert one(torch.full((40, 200), 1 / 200)) == pytest.approx(0, abs=1e-6)
    assert one(attention([120.0] * 40, 200)) == pytest.approx(0, abs=1e-6)
    assert one(torch.eye(200)[[120] * 40]) == pytest.approx(0, abs=1e-6)
    assert one(attention(steady.flip(0).tolist(), 200)) < -0.99
    torch.manual_seed(0)
    assert abs(one(attention((199 * torch.rand(40)).tolist(), 200))) < 0.4
    halves = 0.5 * attention(steady.tolist(), 200) + 0.5 / 200
    assert 0.3 < one(halves) < 0.8


def test_diagonality_is_the_correlation_of_places_drawn_by_the_weights() -> None:
    draw = np.random.default_rng(0)
    weights = draw.dirichlet(np.full(9, 0.3), size=6)
    rows = np.repeat(np.arange(6), 20_000)
    columns = np.concatenate([draw.choice(9, size=20_000, p=weights[t]) for t in range(6)])
    expected = np.corrcoef(rows, columns)[0, 1]
    assert one(torch.from_numpy(weights)) == pytest.approx(expected, abs=0.01)


def test_padding_does_not_count() -> None:
    weights_TS = attention(torch.linspace(0, 49, 20).tolist(), 50)
    weights_BHTS = torch.rand(3, 2, 30, 80)
    weights_BHTS[0, 1, :20, :50] = weights_TS
    found_BH = diagonality(weights_BHTS, torch.tensor([20, 1, 30]), torch.tensor([50, 80, 0]))
    assert found_BH[0, 1].item() == pytest.approx(one(weights_TS), abs=1e-6)
    assert found_BH[1].tolist() == [1.0, 1.0]
    assert found_BH[2].tolist() == [1.0, 1.0]
