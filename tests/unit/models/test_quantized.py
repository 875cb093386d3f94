"""Networks in fewer bits say nearly the same as the whole ones."""

from __future__ import annotations

import pytest
import torch

from transduce import recipe
from transduce.decoding.search import greedy
from transduce.models import Network, Vocabulary, build
from transduce.models.quantized import quantized
from transduce.nn.quantized import QuantizedWeight

SOURCE, LENGTHS = torch.tensor([[5, 6, 7, 3], [8, 9, 3, 0]]), torch.tensor([4, 3])
TARGET = torch.tensor([[2, 5, 6, 7, 3], [2, 9, 8, 3, 0]])


def network(**parts: object) -> Network:
    side = {"layers": 2, "heads": 2, "feed_forward": 64, **parts}
    shape = {"width": 32, "dropout": 0.0, "tie": "all", "encoder": side, "decoder": side}
    torch.manual_seed(1)
    return build(recipe.Model.model_validate(shape), Vocabulary(40, 40)).eval()


@pytest.mark.parametrize(("kind", "loose"), [("bfloat16", 0.02), ("int8", 0.05)])
@pytest.mark.parametrize("activation", ["relu", "swiglu"])
@torch.inference_mode()
def test_the_features_are_nearly_the_same(kind: str, loose: float, activation: str) -> None:
    whole = network(activation=activation)
    few = quantized(whole, kind)
    expected = whole.head(whole(SOURCE, LENGTHS, TARGET[:, :-1]))
    found = few.head(few(SOURCE, LENGTHS, TARGET[:, :-1])).float()
    apart = float((found - expected).norm() / expected.norm())
    assert 1e-5 < apart < loose  # not the same: it is really in fewer bits
    assert torch.equal(expected, whole.head(whole(SOURCE, LENGTHS, TARGET[:, :-1])))


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@torch.inference_mode()
def test_it_can_be_searched(kind: str) -> None:
    few = quantized(network(), kind)
    found = greedy(few, SOURCE, LENGTHS, torch.tensor([6, 6]))
    assert all(len(of_one) == 1 for of_one in found)


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_rows_can_be_cut_out(kind: str) -> None:
    torch.manual_seed(2)
    weight, x, bias = torch.randn(12, 8), torch.randn(3, 8), torch.randn(4)
    x, bias = (t.bfloat16() if kind == "bfloat16" else t for t in (x, bias))
    made = QuantizedWeight(weight, kind)
    assert made[4:8] is made[4:8]
    found = made[4:8].multiply(x, bias).float()
    expected = x.float() @ weight[4:8].T + bias.float()
    assert float((found - expected).norm() / expected.norm()) < 0.02


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16, int8"):
        QuantizedWeight(torch.ones(2, 2), "int4")
