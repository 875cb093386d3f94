"""The loss of distillation and its gradients against the formula in plain float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from transduce.nn import loss as losses
from transduce.nn.loss import Output, distillation_loss

B, T, D, E, V = 4, 5, 8, 6, 11


def drawn(*shape: int, gradient: bool = True) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=gradient)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("chunk", [2**22, 4 * V * 3])
@pytest.mark.parametrize("selecting", ["cpu", "none"], ids=["rows left out", "rows wiped"])
@pytest.mark.parametrize(("weight", "temperature"), [(0.5, 1.0), (0.3, 2.5), (1.0, 0.7)])
def test_loss_and_gradients_are_those_of_the_formula(
    with_bias: bool,
    chunk: int,
    selecting: str,
    weight: float,
    temperature: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(losses, "CHUNK", {"cpu": chunk})
    monkeypatch.setattr(losses, "SELECTING_DEVICES", frozenset({selecting}))
    torch.manual_seed(0)
    student = Output(drawn(B, T, D), drawn(V, D), drawn(V) if with_bias else None)
    teacher = Output(drawn(B, T, E), drawn(V, E), drawn(V) if with_bias else None)
    targets_BT = torch.randint(1, V, (B, T))
    targets_BT[0, 2:] = 0
    loss = distillation_loss(student, teacher, targets_BT, weight, temperature, 0.1, 0)

    own, taught = (F.linear(*one) for one in (student, teacher))
    plain = F.cross_entropy(
        own.flatten(0, 1),
        targets_BT.flatten(),
        ignore_index=0,
        label_smoothing=0.1,
        reduction="sum",
    )
    p, q = (torch.softmax(one / temperature, -1) for one in (own, taught.detach()))
    apart = (q * (q.log() - p.log())).sum(-1)[targets_BT != 0].sum()
    expected = (1 - weight) * plain + weight * temperature**2 * apart
    torch.testing.assert_close(loss.total, expected)
    weights = [one for one in student if one is not None]
    for found, right in zip(
        torch.autograd.grad(loss.total * 0.5, weights),
        torch.autograd.grad(expected * 0.5, weights),
        strict=True,
    ):
        torch.testing.assert_close(found, right)
    nll = F.cross_entropy(own.flatten(0, 1), targets_BT.flatten(), ignore_index=0, reduction="sum")
    torch.testing.assert_close(loss.nll, nll.detach())
    assert int(loss.tokens) == int((targets_BT != 0).sum())
    hits_BT = (own.argmax(-1) == targets_BT) & (targets_BT != 0)
    assert float(loss.correct) == float(hits_BT.sum())


def test_a_student_that_agrees_with_its_teacher_has_nothing_to_learn() -> None:
    torch.manual_seed(0)
    same = Output(drawn(B, T, D), drawn(V, D), None)
    targets_BT = torch.randint(1, V, (B, T))
    loss = distillation_loss(same, same, targets_BT, weight=1.0, temperature=2.0)
    assert float(loss.total.detach()) == pytest.approx(0.0, abs=1e-12)
    (gradient,) = torch.autograd.grad(loss.total, [same.features_BTD])
    assert float(gradient.abs().max()) < 1e-12
