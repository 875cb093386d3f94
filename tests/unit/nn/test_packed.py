"""Products of packed weights are those of the weights, as near as their bits allow."""

from __future__ import annotations

import pytest
import torch

from transduce.nn import packed
from transduce.nn.packed import FEW, KINDS, Multiply, PackedWeight

MAKERS = {
    "as it is": (packed.as_it_is, torch.float32, 1e-6),
    "reordered": (packed.reordered, torch.float32, 1e-6),
    "float32": (packed.float32, torch.float32, 1e-6),
    "float64": (packed.float32, torch.float64, 1e-12),
    "bfloat16": (packed.bfloat16, torch.bfloat16, 0.01),
    "int8": (packed.int8, torch.float32, 0.02),
    "int8 by torch": (packed.int8_by_torch, torch.float32, 0.02),
}


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", [(1,), (FEW,), (3, 7), (40,)])
@pytest.mark.parametrize("name", MAKERS)
@torch.inference_mode()
def test_a_product_and_what_follows_it(name: str, shape: tuple[int, ...]) -> None:
    make, dtype, loose = MAKERS[name]
    torch.manual_seed(2)
    weight = torch.randn(24, 16, dtype=torch.float64)
    x, added = torch.randn(*shape, 16).to(dtype), torch.randn(*shape, 24).to(dtype)
    bias = torch.randn(24).to(dtype)
    product = x.double() @ weight.T
    kept = x.clone(), added.clone(), bias.clone()
    for given, relu, more in [
        (bias, False, None),
        (None, False, None),
        (bias, True, None),
        (bias, False, added),
    ]:
        multiply: Multiply = make(weight.to(dtype), given)
        expected = product if given is None else product + given.double()
        expected = expected.relu() if relu else expected
        expected = expected if more is None else expected + more.double()
        found = multiply(x, relu, more)
        assert found.dtype == dtype
        assert apart(found.double(), expected) < loose
    for before, after in zip(kept, (x, added, bias), strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_rows_can_be_cut_out(kind: str) -> None:
    torch.manual_seed(2)
    weight, x, bias = torch.randn(12, 8), torch.randn(3, 8), torch.randn(12)
    x, bias = (t.bfloat16() if kind == "bfloat16" else t for t in (x, bias))
    made = PackedWeight(weight, bias, kind)
    assert made[4:8] is made[4:8]
    found = made[4:8].multiply(x).float()
    assert apart(found, x.float() @ weight[4:8].T + bias[4:8].float()) < 0.02


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="float32, bfloat16, int8"):
        PackedWeight(torch.ones(2, 2), None, "int4")
