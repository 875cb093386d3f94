"""The places of the highest scores, found in C."""

from __future__ import annotations

import pytest
import torch

from transduce.runtime import library, top_k_scores, why_not

pytestmark = pytest.mark.skipif(library() is None, reason=f"no library: {why_not()}")


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("width", "count"), [(1, 1), (5, 5), (130, 1), (1000, 7), (4099, 10)])
def test_the_highest_of_each_row(rows: int, width: int, count: int) -> None:
    torch.manual_seed(width)
    scores_RX = torch.randn(rows, width)
    for banned in (0, width // 2, width):  # -inf many times over is still so many places
        scores_RX[:, :banned] = -torch.inf
        found = top_k_scores(scores_RX, count)
        assert found is not None
        found_RC, places_RC = found
        assert torch.equal(found_RC, scores_RX.topk(count).values)
        assert torch.equal(scores_RX.gather(1, places_RC), found_RC)
        assert all(len(set(places)) == count for places in places_RC.tolist())


def test_of_equals_the_first() -> None:
    scores_RX = torch.zeros(2, 300)
    scores_RX[1, 200:] = 1.0
    found = top_k_scores(scores_RX, 3)
    assert found is not None
    assert found[1].tolist() == [[0, 1, 2], [200, 201, 202]]


def test_others_are_left_to_torch() -> None:
    assert top_k_scores(torch.zeros(2, 3, dtype=torch.float64), 1) is None
    assert top_k_scores(torch.zeros(3, 2).t(), 1) is None
