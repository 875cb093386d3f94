"""Dynamic time warping, compared with a search of all paths."""

from __future__ import annotations

import numpy as np
import pytest

from transduce.whisper.word_times import dtw


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
