"""Guided attention against the formula, token by token and state by state."""

from __future__ import annotations

import math

import pytest
import torch

from transduce.nn.attention.guided import WIDTH, guided_attention_loss


def test_it_is_the_formula_and_padding_costs_nothing() -> None:
    torch.manual_seed(0)
    tokens, states = [3, 5], [7, 4]
    visible_B1TS = torch.arange(7) < torch.tensor(states)[:, None, None, None]
    scores_BHTS = torch.randn(2, 2, 5, 7).masked_fill(~visible_B1TS, -torch.inf)
    weights_BHTS = scores_BHTS.softmax(-1)
    counted_BT = torch.arange(5) < torch.tensor(tokens)[:, None]
    expected = 0.0
    for row in range(2):
        for t in range(tokens[row]):
            for s in range(states[row]):
                apart = (t + 0.5) / tokens[row] - (s + 0.5) / states[row]
                cost = 1 - math.exp(-(apart**2) / (2 * WIDTH**2))
                expected += float(weights_BHTS[row, :, t, s].mean()) * cost
    found = guided_attention_loss(weights_BHTS, counted_BT, torch.tensor(states))
    assert found.item() == pytest.approx(expected, rel=1e-5)
    longer_BHTS = torch.nn.functional.pad(weights_BHTS, (0, 3, 0, 2))
    more_BT = torch.nn.functional.pad(counted_BT, (0, 2))
    again = guided_attention_loss(longer_BHTS, more_BT, torch.tensor(states))
    torch.testing.assert_close(again, found)


def test_the_diagonal_costs_least_and_the_other_one_most() -> None:
    along_TS, counted_BT = torch.eye(8), torch.ones(1, 8, dtype=torch.bool)

    def cost(weights_TS: torch.Tensor) -> float:
        return guided_attention_loss(weights_TS[None, None], counted_BT, torch.tensor([8])).item()

    assert cost(along_TS) == pytest.approx(0.0, abs=1e-6)
    assert cost(torch.full((8, 8), 1 / 8)) < cost(along_TS.flip(1)) < 8
