"""Cross-entropy against torch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn import loss as losses
from transduce.nn.loss import cross_entropy, softmax_gradient

B, T, D, V = 3, 5, 8, 11


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    features_BTD = torch.randn(B, T, D, dtype=dtype, requires_grad=True)
    weight_VD = torch.randn(V, D, dtype=dtype, requires_grad=True)
    bias_V = torch.randn(V, dtype=dtype, requires_grad=True)
    targets_BT = torch.randint(1, V, (B, T))
    return features_BTD, weight_VD, bias_V, targets_BT


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("ignore", [0, -100])
@pytest.mark.parametrize("with_bias", [True, False])
def test_it_is_torchs(smoothing: float, ignore: int, with_bias: bool) -> None:
    features_BTD, weight_VD, bias, targets_BT = batch()
    bias_V = bias if with_bias else None
    targets_BT[0, 2:] = ignore
    targets_BT[2, 4] = ignore
    loss = cross_entropy(features_BTD, weight_VD, bias_V, targets_BT, smoothing, ignore)

    logits_NV = F.linear(features_BTD, weight_VD, bias_V).flatten(0, 1)
    expected = F.cross_entropy(
        logits_NV,
        targets_BT.flatten(),
        ignore_index=ignore,
        label_smoothing=smoothing,
        reduction="sum",
    )
    plain = F.cross_entropy(logits_NV, targets_BT.flatten(), ignore_index=ignore, reduction="sum")
    torch.testing.assert_close(loss.total, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(loss.nll, plain.detach(), rtol=0, atol=1e-10)
    assert loss.tokens.item() == B * T - 4
    assert not loss.nll.requires_grad

    inputs = [features_BTD, weight_VD, *([bias] if with_bias else [])]
    for ours, theirs in zip(
        torch.autograd.grad(loss.total, inputs), torch.autograd.grad(expected, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


def test_it_counts_hits() -> None:
    targets_BT = torch.tensor([[3, 1, 2, 0]])
    predicted_BT = torch.tensor([[3, 2, 2, 0]])
    loss = cross_entropy(F.one_hot(predicted_BT, 4).float(), 9 * torch.eye(4), None, targets_BT)
    assert loss.correct.item() == 2
    assert loss.tokens.item() == 3


def test_padding_learns_nothing() -> None:
    features_BTD, weight_VD, bias_V, targets_BT = batch()
    targets_BT[1] = 0
    cross_entropy(features_BTD, weight_VD, bias_V, targets_BT, 0.1).total.backward()
    assert features_BTD.grad is not None
    assert (features_BTD.grad[1] == 0).all()
    assert (features_BTD.grad[0] != 0).all()


def test_a_batch_of_padding_costs_nothing_and_can_be_differentiated() -> None:
    features_BTD, weight_VD, bias_V, targets_BT = batch()
    loss = cross_entropy(features_BTD, weight_VD, bias_V, torch.zeros_like(targets_BT), 0.1)
    loss.total.backward()
    assert [number.item() for number in loss] == [0, 0, 0, 0]
    assert weight_VD.grad is not None
    assert (weight_VD.grad == 0).all()


def test_log_softmax_is_float32_under_autocast() -> None:
    features_BTD, weight_VD, bias_V, targets_BT = batch(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = cross_entropy(features_BTD, weight_VD, bias_V, targets_BT, 0.1)
        logits_NV = F.linear(features_BTD, weight_VD, bias_V).flatten(0, 1)
    assert loss.total.dtype == loss.nll.dtype == torch.float32
    expected = F.cross_entropy(
        logits_NV.double(), targets_BT.flatten(), label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss.total.double(), expected, rtol=1e-6, atol=0)


def test_the_path_of_accelerators_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the ignored rows are computed and wiped instead of left out."""
    features_BTD, weight_VD, bias_V, targets_BT = batch()
    targets_BT[0, 1:] = -100
    with torch.no_grad():
        bias_V[0] += 100  # token 0, which stands in for ignored targets there, is always the best
    inputs = features_BTD, weight_VD, bias_V
    selected = cross_entropy(*inputs, targets_BT, 0.1, ignore=-100)
    monkeypatch.setattr(losses, "SELECTING_DEVICES", frozenset())
    wiped = cross_entropy(*inputs, targets_BT, 0.1, ignore=-100)
    for one, other in zip(selected, wiped, strict=True):
        torch.testing.assert_close(one, other)
    gradients = torch.autograd.grad(wiped.total, inputs)
    for one, other in zip(gradients, torch.autograd.grad(selected.total, inputs), strict=True):
        torch.testing.assert_close(one, other)
    assert (gradients[0][0, 1:] == 0).all()
    assert wiped.correct.item() == 0


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_of_bfloat16_is_taken_in_float32(smoothing: float) -> None:
    """Of the logits as they are: what they were rounded by before is not its affair."""
    torch.manual_seed(4)
    logits_NV = (torch.randn(400, 300) * 3).bfloat16()
    targets_N = torch.randint(300, (400,))
    logits_NV[torch.arange(200), targets_N[:200]] += 20  # probabilities of 0.998 and more
    exact_NV = logits_NV.double().requires_grad_()
    expected_N = F.cross_entropy(exact_NV, targets_N, reduction="none", label_smoothing=smoothing)
    (by_exact_NV,) = torch.autograd.grad(expected_N.sum(), exact_NV)
    plain_N = F.cross_entropy(exact_NV, targets_N, reduction="none").detach()
    counted_N = torch.ones(400, dtype=torch.bool)
    loss_N, nll_N, _, by_logits_NV = softmax_gradient(
        logits_NV, targets_N, counted_N, smoothing, gradient=True
    )
    assert loss_N.dtype == nll_N.dtype == torch.float32
    torch.testing.assert_close(loss_N.double(), expected_N.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(nll_N.double(), plain_N, rtol=1e-5, atol=1e-6)
    assert by_logits_NV.dtype == torch.bfloat16
    torch.testing.assert_close(by_logits_NV.double(), by_exact_NV, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_none_is_computed(
    mode: type[torch.no_grad], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def noted(*inputs: Any) -> Any:
        asked.append(inputs[-1])
        return softmax_gradient(*inputs)

    monkeypatch.setattr(losses, "softmax_gradient", noted)
    *inputs, targets_BT = batch()  # which need gradients
    learnt = cross_entropy(*inputs, targets_BT, 0.1)
    with mode():
        validated = cross_entropy(*inputs, targets_BT, 0.1)
    assert asked == [True, False]
    for one, other in zip(learnt, validated, strict=True):
        torch.testing.assert_close(one, other)
    assert not validated.total.requires_grad
    frozen = [tensor.detach() for tensor in inputs]
    cross_entropy(*frozen, targets_BT, 0.1)
    assert asked == [True, False, False]


@pytest.mark.parametrize(
    ("rows", "tables", "size"),
    [(20_480, 1, 6912), (8192, 1, 8192), (8300, 1, 4352), (100, 1, 256), (10_000, 2, 3584)],
)
def test_chunks_on_a_gpu_are_of_one_size(rows: int, tables: int, size: int) -> None:
    """At most 2^28 logits in whole tiles, and no chunk is a small rest."""
    weight: Any = SimpleNamespace(
        device=SimpleNamespace(type="cuda"), shape=(32_000, 512), is_cuda=True
    )
    found = losses._chunk_rows(weight, rows, tables)
    assert found == size
    assert found * 32_000 * tables <= 2**28
    chunks = -(-rows // found)
    assert chunks * found - rows < 256 * chunks
