"""Masks against their definition, position by position."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from transduce.nn.masks import Mask, Segments, causal, padding, window


def brute_force(mask: Mask, B: int, T: int, S: int) -> Tensor:
    """Which key each query sees, from the words of the definition."""
    seen_BTS = torch.ones(B, T, S, dtype=torch.bool)
    for b in range(B):
        for t in range(T):
            here = S - T + t
            for key in range(S):
                if mask.causal and not key <= here:
                    seen_BTS[b, t, key] = False
                if mask.window is not None:
                    back, ahead = mask.window
                    if key < here - back or key > here + ahead:
                        seen_BTS[b, t, key] = False
                if mask.visible_BTS is not None:
                    visible_BTS = mask.visible_BTS.expand(B, T, S)
                    seen_BTS[b, t, key] &= visible_BTS[b, t, key]
    return seen_BTS


def expand(visible_BTS: Tensor | None, B: int, T: int, S: int) -> Tensor:
    if visible_BTS is None:
        return torch.ones(B, T, S, dtype=torch.bool)
    return visible_BTS.expand(B, T, S)


@st.composite
def masks_of_a_size(draw: st.DrawFn) -> tuple[Mask, Mask, int, int, int]:
    B, S = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    T = draw(st.integers(1, S))

    def one_mask() -> Mask:
        windows = st.none() | st.tuples(st.integers(0, 7), st.integers(0, 7))
        rows, columns = draw(st.sampled_from([(B, 1), (B, T), (1, T)]))
        bits = st.lists(st.booleans(), min_size=rows * columns * S, max_size=rows * columns * S)
        visible = draw(st.none() | bits)
        return Mask(
            causal=draw(st.booleans()),
            window=draw(windows),
            visible_BTS=None if visible is None else torch.tensor(visible).view(rows, columns, S),
        )

    return one_mask(), one_mask(), B, T, S


@given(masks_of_a_size())
def test_any_two_masks_together_see_what_both_see(case: tuple[Mask, Mask, int, int, int]) -> None:
    one, other, B, T, S = case
    expected_BTS = brute_force(one, B, T, S) & brute_force(other, B, T, S)
    assert torch.equal(expand((one & other).dense(T, S), B, T, S), expected_BTS)


@given(masks_of_a_size())
def test_dense_follows_the_definition(case: tuple[Mask, Mask, int, int, int]) -> None:
    mask, _, B, T, S = case
    assert torch.equal(expand(mask.dense(T, S), B, T, S), brute_force(mask, B, T, S))


def test_every_small_window_follows_the_definition() -> None:
    for S, back, ahead in itertools.product(range(1, 5), range(5), range(5)):
        for T in range(1, S + 1):
            mask = window(back, ahead)
            assert torch.equal(expand(mask.dense(T, S), 1, T, S), brute_force(mask, 1, T, S))


def test_causal_sees_itself_and_the_past() -> None:
    visible_1TS = causal().dense(3, 3)
    assert visible_1TS is not None
    assert visible_1TS.tolist() == [[[True, False, False], [True, True, False], [True, True, True]]]


def test_a_cached_causal_step_needs_no_mask() -> None:
    assert causal().dense(1, 7) is None
    assert Mask().dense(4, 7) is None
    assert window(6, 6).dense(7, 7) is None


def test_window_sees_back_and_ahead() -> None:
    visible_1TS = window(1, 2).dense(5, 5)
    assert visible_1TS is not None
    assert visible_1TS[0, 2].tolist() == [False, True, True, True, True]
    assert visible_1TS[0, 0].tolist() == [True, True, True, False, False]


def test_padding_hides_what_is_past_each_length() -> None:
    visible_B1S = padding(torch.tensor([2, 0, 3]), 3).dense(5, 3)
    assert visible_B1S is not None
    assert visible_B1S.tolist() == [
        [[True, True, False]],
        [[False, False, False]],
        [[True, True, True]],
    ]


def test_a_matrix_of_queries_and_keys_serves_the_whole_batch() -> None:
    visible_TS = torch.tensor([[True, False], [True, True]])
    visible_1TS = Mask(visible_BTS=visible_TS).dense(2, 2)
    assert visible_1TS is not None
    assert visible_1TS.shape == (1, 2, 2)


def test_mistakes_are_reported() -> None:
    with pytest.raises(ValueError, match="zero or more"):
        window(-1, 2)
    with pytest.raises(ValueError, match="bool tensor"):
        Mask(visible_BTS=torch.ones(1, 1, 3))
    with pytest.raises(ValueError, match="5 queries and only 3 keys"):
        causal().dense(5, 3)


def test_of_two_segmentations_neither_is_lost() -> None:
    one = Segments(torch.tensor([0, 3, 6]), torch.tensor([0, 4, 8]), 4)
    other = Segments(torch.tensor([0, 2, 6]), torch.tensor([0, 5, 8]), 5)
    third = Segments(torch.tensor([0, 6]), torch.tensor([0, 1, 8]), 7)
    together = Mask(segments=one) & Mask(segments=other) & (causal() & Mask(segments=third))
    expected = one.dense(6, 8) & other.dense(6, 8) & third.dense(6, 8)
    expected &= causal().dense(6, 8)
    found = together.dense(6, 8)
    assert found is not None
    assert torch.equal(found, expected)
    assert not together.only_segments  # kernels that know one of them do not apply
    same = Mask(segments=one) & Mask(segments=one)
    assert same.only_segments
    assert same.segments is one
