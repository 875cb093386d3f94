"""Dynamic time warping, compared with a search of all paths."""

from __future__ import annotations

import numpy as np
import pytest

from transduce.whisper.word_times import dtw, word_states


def min_cost(cost: np.ndarray, i: int = 0, j: int = 0) -> float:
    """By trying every path from the corner (i, j) to the last."""
    T, S = cost.shape
    if i == T - 1 and j == S - 1:
        return float(cost[i, j])
    ways = [(i + 1, j), (i, j + 1), (i + 1, j + 1)]
    inside = [min_cost(cost, a, b) for a, b in ways if a < T and b < S]
    return float(cost[i, j]) + min(inside)


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (4, 1), (4, 6), (5, 3)])
def test_the_path_has_the_least_cost(shape: tuple[int, int]) -> None:
    draw = np.random.default_rng(3)
    for _ in range(5):
        cost = draw.standard_normal(shape)
        rows, columns = dtw(cost)
        steps = set(zip(np.diff(rows).tolist(), np.diff(columns).tolist(), strict=True))
        assert steps <= {(0, 1), (1, 0), (1, 1)}
        assert (rows[0], columns[0], rows[-1], columns[-1]) == (0, 0, shape[0] - 1, shape[1] - 1)
        assert cost[rows, columns].sum() == pytest.approx(min_cost(cost))


@pytest.mark.parametrize(
    ("said", "unsaid", "wanted"),
    [
        ([4, 5, 6, 7], [], (4, 8)),
        # A part of it lies beyond a pause: the larger part is taken.
        ([4, 30, 31, 32], [], (30, 33)),
        ([4, 5, 6, 40], [], (4, 7)),
        # A full stop is the end of the sound before it, but not of what comes after a pause.
        ([4, 5], [5, 6, 7, 40, 41], (4, 8)),
        ([4, 5], [40, 41], (4, 6)),
        ([4, 5, 6, 40], [41, 42], (4, 7)),
    ],
)
def test_a_word_does_not_last_over_a_pause(
    said: list[int], unsaid: list[int], wanted: tuple[int, int]
) -> None:
    assert word_states(np.array(said), np.array(unsaid, np.int64), pause=15) == wanted
