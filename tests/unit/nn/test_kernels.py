"""The kernels written by hand, against float64; they run on a GPU alone."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention import fused_attention, masked_softmax
from transduce.nn.losses import cross_entropy
from transduce.nn.masks import Mask, causal, padding
from transduce.nn.residual import add_dropped, normalise
from transduce.nn.short_attention import fits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

HALF = torch.autocast("cuda", dtype=torch.bfloat16)


def apart(ours: Tensor, exact: Tensor) -> float:
    ours, exact = ours.detach().double(), exact.detach().double()
    return float((ours - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("T", "S", "K", "is_causal", "padded"),
    [
        (32, 32, 64, True, True),
        (7, 19, 64, False, True),
        (64, 64, 32, True, False),
        (9, 9, 128, True, True),
    ],
)
def test_short_attention(T: int, S: int, K: int, is_causal: bool, padded: bool) -> None:
    torch.manual_seed(1)
    B, H = 5, 4
    lengths_B = torch.randint(0 if not is_causal else 1, S + 1, (B,), device="cuda")
    mask = (causal() if is_causal else Mask()) & (padding(lengths_B, S) if padded else Mask())
    q, k, v = (torch.randn(B, H, n, K, device="cuda").bfloat16() for n in (T, S, S))
    grad = torch.randn(B, H, T, K, device="cuda").bfloat16()
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    assert fits(ours[0], ours[1], 0.0)
    out = fused_attention(*ours, mask=mask)
    out.backward(grad)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    visible = mask.dense(T, S, "cuda")
    scores = exact[0] @ exact[1].mT / K**0.5
    weights = masked_softmax(scores, None if visible is None else visible[:, None])
    (weights @ exact[2]).backward(grad.double())
    assert apart(out, weights @ exact[2]) < 5e-3
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert apart(mine.grad, theirs.grad) < 6e-3


@pytest.mark.parametrize("width", [512, 300, 1024])
def test_layer_norm(width: int) -> None:
    torch.manual_seed(1)
    norm = nn.LayerNorm(width, device="cuda")
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    exact = nn.LayerNorm(width, device="cuda", dtype=torch.float64)
    exact.load_state_dict(norm.state_dict())
    x = (3 * torch.randn(37, 11, width, device="cuda") + 1).requires_grad_()
    x64 = x.detach().double().requires_grad_()
    grad = torch.randn_like(x)
    with HALF:
        y = normalise(norm, x, half=False)
        assert normalise(norm, x, half=True).dtype == torch.bfloat16
    y.backward(grad)
    exact(x64).backward(grad.double())
    assert apart(y, exact(x64)) < 1e-6
    pairs = [(x, x64), (norm.weight, exact.weight), (norm.bias, exact.bias)]
    for mine, theirs in pairs:
        assert mine.grad is not None
        assert theirs.grad is not None
        assert apart(mine.grad, theirs.grad) < 1e-6


def test_the_dropped_sum_drops_the_same_forward_and_back() -> None:
    x = torch.randn(100, 33, 512, device="cuda", requires_grad=True)
    change = torch.ones(100, 33, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with HALF:
        out = add_dropped(x, change, 0.1, training=True)
        again = add_dropped(x, change, 0.1, training=True)
        calm = add_dropped(x, change, 0.1, training=False)
    added = (out - x).detach()
    assert float((added > 0.5).float().mean()) == pytest.approx(0.9, abs=0.002)
    assert float(added.mean()) == pytest.approx(1.0, abs=0.002)
    assert not torch.equal(out, again)
    torch.testing.assert_close(calm, x + 1)
    out.sum().backward()
    assert change.grad is not None
    assert torch.equal(change.grad > 0.5, added > 0.5)
    assert torch.equal(x.grad, torch.ones_like(x))


@pytest.mark.parametrize("vocabulary", [45, 8000, 40000])
@pytest.mark.parametrize("half", [False, True])
def test_cross_entropy(vocabulary: int, half: bool) -> None:
    torch.manual_seed(1)
    features = 0.3 * torch.randn(300, 64, device="cuda")
    weight = 0.3 * torch.randn(vocabulary, 64, device="cuda")
    bias = torch.randn(vocabulary, device="cuda")
    targets = torch.randint(1, vocabulary, (300,), device="cuda")
    targets[:20] = 0
    ours = [t.clone().requires_grad_() for t in (features, weight, bias)]
    exact = [t.double().requires_grad_() for t in (features, weight, bias)]
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
        loss = cross_entropy(ours[0][None], ours[1], ours[2], targets[None], 0.1, ignore=0)
    (loss.total / 7).backward()
    logits = exact[0] @ exact[1].T + exact[2]
    reference = F.cross_entropy(
        logits, targets, label_smoothing=0.1, ignore_index=0, reduction="sum"
    )
    (reference / 7).backward()
    assert int(loss.tokens) == 280
    assert apart(loss.total, reference) < (1e-3 if half else 1e-5)
    for mine, theirs in zip(ours, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert apart(mine.grad, theirs.grad) < (1e-2 if half else 1e-3)
