"""Relative positions: the buckets of T5, and that only the distance counts."""

from __future__ import annotations

import math

import pytest
import torch

from transduce.nn.attention.bucketed import BucketedBias
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.masks import causal


def bucket(away: int, buckets: int, distance: int, both: bool) -> int:
    """Raffel et al. 2020, as a sentence: exact ones first, then by the logarithm."""
    first = 0
    if both:
        buckets //= 2
        first = buckets if away > 0 else 0
        away = abs(away)
    else:
        away = max(-away, 0)
    exact = buckets // 2
    if away < exact:
        return first + away
    share = math.log(away / exact) / math.log(distance / exact)
    return first + min(exact + math.floor(share * (buckets - exact) + 1e-6), buckets - 1)


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (16, 50)])
def test_buckets(both: bool, buckets: int, distance: int) -> None:
    bias = BucketedBias(2, buckets, distance, both)
    away = torch.arange(-2 * distance, 2 * distance)
    expected = [bucket(int(one), buckets, distance, both) for one in away]
    assert bias.bucket(away).tolist() == expected
    assert set(expected) >= set(range(buckets)) - {buckets // 2 if both else None}


def test_only_the_distance_counts() -> None:
    bias = BucketedBias(3, 8, 20, both_directions=True)
    whole_HTS = bias(9, 9)
    torch.testing.assert_close(whole_HTS[:, 1:, 1:], whole_HTS[:, :-1, :-1])
    torch.testing.assert_close(bias(2, 9), whole_HTS[:, -2:])
    assert not torch.equal(whole_HTS[:, 0, 1], whole_HTS[:, 1, 0]), "before is not after"


def test_attention_is_softmax_of_scores_and_bias() -> None:
    torch.manual_seed(2)
    bias = BucketedBias(2, 8, 20, both_directions=False)
    attention = MultiHeadAttention(8, 2, relative=bias).double()
    x_BTD = torch.randn(1, 5, 8).double()
    query, keys, values = (
        part.view(5, 2, 4).transpose(0, 1) for part in attention.in_projection(x_BTD).chunk(3, -1)
    )
    scores_HTT = query @ keys.mT / 2 + bias(5, 5)
    scores_HTT = scores_HTT.masked_fill(torch.ones(5, 5).triu(1).bool(), -math.inf)
    context_TD = (scores_HTT.softmax(-1) @ values).transpose(0, 1).flatten(1)
    expected_TD = attention.out_projection(context_TD)
    torch.testing.assert_close(attention(x_BTD, mask=causal())[0], expected_TD)
    attention(x_BTD, mask=causal()).sum().backward()
    assert bias.table_RH.grad is not None


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="even number"):
        BucketedBias(2, 7, 20, both_directions=True)
    with pytest.raises(ValueError, match="too small"):
        BucketedBias(2, 32, 8, both_directions=True)
