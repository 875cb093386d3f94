"""R-Drop against its formula in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from transduce.nn import loss as losses
from transduce.nn.loss import r_drop_cross_entropy

B, T, D, V = 4, 5, 8, 11


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("chunk", [2**22, 4 * V * 3])
@pytest.mark.parametrize("selecting", ["cpu", "none"], ids=["rows left out", "rows wiped"])
def test_loss_and_gradients_are_those_of_the_formula(
    with_bias: bool, chunk: int, selecting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "CHUNK", {"cpu": chunk})
    monkeypatch.setattr(losses, "SELECTING_DEVICES", frozenset({selecting}))
    torch.manual_seed(0)
    features_BTD = torch.randn(2 * B, T, D, dtype=torch.float64, requires_grad=True)
    weight_VD = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    bias_V = torch.randn(V, dtype=torch.float64, requires_grad=True) if with_bias else None
    targets_BT = torch.randint(1, V, (B, T))
    targets_BT[0, 2:] = 0
    twice_BT = targets_BT.repeat(2, 1)
    loss = r_drop_cross_entropy(features_BTD, weight_VD, bias_V, twice_BT, 3.0, 0.1, 0)

    logits_BTV = F.linear(features_BTD, weight_VD, bias_V)
    plain = F.cross_entropy(
        logits_BTV.flatten(0, 1),
        twice_BT.flatten(),
        ignore_index=0,
        label_smoothing=0.1,
        reduction="sum",
    )
    log_p, log_q = logits_BTV.log_softmax(-1).chunk(2)
    apart = [
        F.kl_div(one, other, reduction="none", log_target=True).sum(-1)[targets_BT != 0].sum()
        for one, other in ((log_p, log_q), (log_q, log_p))
    ]
    expected = plain / 2 + 3.0 * (apart[0] + apart[1]) / 2
    weights = [w for w in (features_BTD, weight_VD, bias_V) if w is not None]
    torch.testing.assert_close(loss.total, expected)
    for found, right in zip(
        torch.autograd.grad(loss.total * 0.5, weights),
        torch.autograd.grad(expected * 0.5, weights),
        strict=True,
    ):
        torch.testing.assert_close(found, right)
    assert int(loss.tokens) == int((targets_BT != 0).sum())
    hits_BT = (logits_BTV.argmax(-1) == twice_BT) & (twice_BT != 0)
    assert float(loss.correct) == float(hits_BT.sum()) / 2


def test_equal_passes_agree() -> None:
    torch.manual_seed(0)
    half_BTD, weight_VD = torch.randn(B, T, D), torch.randn(V, D)
    targets_BT = torch.randint(1, V, (B, T)).repeat(2, 1)
    features_BTD = half_BTD.repeat(2, 1, 1)
    alone = r_drop_cross_entropy(features_BTD, weight_VD, None, targets_BT, 100.0)
    plain = losses.cross_entropy(half_BTD, weight_VD, None, targets_BT[:B])
    torch.testing.assert_close(alone.total, plain.total)
