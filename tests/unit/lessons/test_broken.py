"""A lesson's assertion fails where what it claims is not so: the code is broken on purpose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import transduce.models

# Before anything is replaced: a module imported later would keep what was put in its place.
import transduce.models.architectures
from broken_lessons import fails
from transduce.models import encoders
from transduce.nn import masks, positions
from transduce.nn.attention import attention, multihead
from transduce.nn.recurrent import cells

Patch = pytest.MonkeyPatch


def test_weights_that_do_not_sum_to_one(monkeypatch: Patch, tmp_path: Path) -> None:
    def sigmoids(scores: Tensor, visible: Tensor | None) -> Tensor:
        return scores.sigmoid()

    monkeypatch.setattr(attention, "masked_softmax", sigmoids)
    fails("convex_average", tmp_path, "sum to one")


def test_scores_that_are_not_scaled(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(attention.ScaledDot, "forward", attention.Dot.forward)
    fails("scaled_scores", tmp_path, "scaled, the gradient changes")


@pytest.mark.parametrize("ahead", [0, 1], ids=["nothing hidden", "one step ahead"])
def test_a_mask_that_leaks(monkeypatch: Patch, tmp_path: Path, ahead: int) -> None:
    leak = masks.Mask(window=(1000, 1)) if ahead else masks.Mask()
    monkeypatch.setattr(masks, "causal", lambda: leak)
    fails("causal_mask", tmp_path, "gradient from the future")


@pytest.mark.slow
def test_positions_where_there_should_be_none(monkeypatch: Patch, tmp_path: Path) -> None:
    build = transduce.models.TransformerClassifier

    def always(*sizes: int, **numbers: Any) -> nn.Module:
        return build(*sizes, **(numbers | {"positions": "sinusoidal"}))

    monkeypatch.setattr(transduce.models, "TransformerClassifier", always, raising=False)
    fails("word_order", tmp_path, "not half")


def test_positions_that_do_nothing(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(positions.Positioned, "forward", lambda self, x_BTD, start=0: x_BTD)
    fails("word_order", tmp_path, "some word has the same vector")


def test_a_rotation_the_wrong_way_round(monkeypatch: Patch, tmp_path: Path) -> None:
    matrix = positions.Fourier.shift_matrix
    monkeypatch.setattr(positions.Fourier, "shift_matrix", lambda self, d: matrix(self, -d))
    fails("shift_is_rotation", tmp_path, "shift_matrix is wrong")


def test_a_state_by_another_equation(monkeypatch: Patch, tmp_path: Path) -> None:
    def linear(self: cells.Elman, *arguments: Any) -> tuple[Tensor, cells.State]:
        U, V, bias_U, bias_V = self.weights()
        h_BD, states = torch.zeros(len(arguments[0]), self.width, dtype=U.dtype), []
        for x_BD in arguments[0].unbind(1):
            h_BD = torch.relu(x_BD @ U.T + bias_U + h_BD @ V.T + bias_V)
            states.append(h_BD)
        return torch.stack(states, dim=1), (h_BD,)

    monkeypatch.setattr(cells.Elman, "forward", linear)
    fails("back_propagation_through_time", tmp_path, "by hand differs")


def test_a_step_that_waits_for_the_one_before(monkeypatch: Patch, tmp_path: Path) -> None:
    """Attention computed row by row, each with something of the last: a chain."""
    whole = multihead.MultiHeadAttention.forward

    def one_by_one(self: multihead.MultiHeadAttention, query_BTD: Tensor, **how: Any) -> Tensor:
        output_BTD = whole(self, query_BTD, **how)
        rows = [output_BTD[:, 0]]
        for t in range(1, output_BTD.shape[1]):
            rows.append(output_BTD[:, t] + 0 * rows[-1])
        return torch.stack(rows, dim=1)

    monkeypatch.setattr(multihead.MultiHeadAttention, "forward", one_by_one)
    fails("recurrence_is_sequential", tmp_path, "chain grows")


def test_attention_that_sees_only_its_neighbours(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(masks, "causal", lambda: masks.Mask(causal=True, window=(10, 0)))
    fails("interaction_distance", tmp_path, "attention: ")


def test_concatenated_vectors_that_are_no_wider(monkeypatch: Patch, tmp_path: Path) -> None:
    build = transduce.models.TransformerTagger

    def wide(*sizes: int, **numbers: Any) -> nn.Module:
        width = 32 if numbers["width"] == 64 else numbers["width"]
        changed = {"width": width, "feed_forward": 2 * width}
        return build(*sizes, **(numbers | changed))

    monkeypatch.setattr(transduce.models, "TransformerTagger", wide, raising=False)
    fails("concatenate_or_add", tmp_path, "1.00 times")


@pytest.mark.slow
def test_heads_that_all_look_alike(monkeypatch: Patch, tmp_path: Path) -> None:
    """Eight heads with the weights of one of them."""
    weights = multihead.MultiHeadAttention._weights
    fused = multihead.fused_attention

    def alike(query: Tensor, keys: Tensor, values: Tensor, *how: Any) -> Tensor:
        first = [x_BHTK[:, :1].expand_as(x_BHTK) for x_BHTK in (query, keys)]
        return fused(*first, values, *how)

    def alike_weights(self: Any, query: Tensor, keys: Tensor, mask: Any) -> Tensor:
        return weights(self, query, keys, mask)[:, :1].expand(-1, query.shape[1], -1, -1)

    monkeypatch.setattr(multihead, "fused_attention", alike)
    monkeypatch.setattr(multihead.MultiHeadAttention, "_weights", alike_weights)
    fails("heads", tmp_path, "eight heads know")


@pytest.mark.slow
def test_a_source_that_is_not_reversed(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(encoders, "reverse_sequences", lambda x_BSD, lengths_B=None: x_BSD)
    fails("fixed_context", tmp_path, "reversed ")


@pytest.mark.slow
def test_an_additive_score_that_is_a_product(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setattr(attention.Additive, "prepare", attention.Dot.prepare)
    monkeypatch.setattr(attention.Additive, "forward", attention.Dot.forward)
    fails("six_scores", tmp_path, "takes only")
