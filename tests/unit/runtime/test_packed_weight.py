"""Products of packed weights are those of the weights, as near as their bits allow."""

from __future__ import annotations

import pytest
import torch

from transduce.runtime import library, why_not
from transduce.runtime import packed_weight as packed
from transduce.runtime.packed_weight import FEW, KINDS, Multiply, PackedWeight

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
    x, bias = torch.randn(*shape, 16).to(dtype), torch.randn(24).to(dtype)
    product = x.double() @ weight.T
    kept = x.clone(), bias.clone()
    for given, relu in [(bias, False), (None, False), (bias, True)]:
        multiply: Multiply = make(weight.to(dtype), given)
        expected = product if given is None else product + given.double()
        expected = expected.relu() if relu else expected
        found = multiply(x, relu)
        assert found.dtype == dtype
        assert apart(found.double(), expected) < loose
    for before, after in zip(kept, (x, bias), strict=True):
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


@pytest.mark.parametrize("name", ["int8", "int8 by torch"])
@torch.inference_mode()
def test_in_8_bits_a_row_is_the_same_whoever_its_neighbours_are(name: str) -> None:
    torch.manual_seed(2)
    multiply = MAKERS[name][0](torch.randn(40, 1500), torch.randn(40))
    x_RD = torch.randn(9, 1500) * torch.logspace(-3, 3, 9)[:, None]
    together_RF = multiply(x_RD, False)
    for row in range(9):
        alone_1F = multiply(x_RD[row : row + 1], False)
        assert torch.equal(alone_1F, together_RF[row : row + 1])


@pytest.mark.parametrize("width", [7, 64, 1024, 1025, 4096])
@torch.inference_mode()
def test_with_and_without_the_library_8_bits_are_the_same(width: int) -> None:
    if library() is None:
        pytest.skip(f"no library: {why_not()}")
    torch.manual_seed(width)
    weight_FD, bias_F = torch.randn(70, width), torch.randn(70)
    weight_FD[0], weight_FD[1] = 1.0, -1.0  # the largest sums there are: none may saturate
    x_BTD = torch.randn(30, 20, width)
    x_BTD[0, 0], x_BTD[0, 1], x_BTD[0, 2] = 1.0, -1.0, 0.0
    # Halves, where one rounding more would find another level.
    x_BTD[1, :, 0] = 127.0
    x_BTD[1, :, 1:] = torch.randint(-126, 126, (20, width - 1)) + 0.5
    for relu in (False, True):
        found = packed.int8_by_torch(weight_FD, bias_F)(x_BTD, relu)
        expected = packed.int8(weight_FD, bias_F)(x_BTD, relu)
        size = float(expected.abs().amax())
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=2e-7 * size)


@pytest.mark.parametrize("name", ["int8", "int8 by torch"])
@torch.inference_mode()
def test_in_8_bits_what_is_no_number_stays_in_its_row(name: str) -> None:
    multiply = MAKERS[name][0](torch.randn(24, 16), torch.randn(24))
    x_RD = torch.randn(4, 16)
    x_RD[1, 3], x_RD[2, 5] = torch.nan, torch.inf
    y_RF = multiply(x_RD, False)
    assert y_RF.isnan().all(dim=1).tolist() == [False, True, True, False]


def test_all_rows_of_a_large_weight_are_quantized_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    weight_FD = torch.randn(23, 8, generator=torch.Generator().manual_seed(1))
    weight_FD[5] = 0.0
    whole = packed.quantize_weight(weight_FD)
    monkeypatch.setattr(packed, "ROWS", 4)
    for mine, theirs in zip(packed.quantize_weight(weight_FD), whole, strict=True):
        assert torch.equal(mine, theirs)
    levels_FD, scale_F = whole
    assert (levels_FD * scale_F[:, None] - weight_FD).abs().max() <= scale_F.max() / 2
