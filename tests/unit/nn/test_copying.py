"""The pointer-generator against loops over a tiny vocabulary, and its loss and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from transduce.nn.copying import PointerGenerator, hide, mixture_loss

B, T, S, V, D = 2, 3, 5, 7, 4
# Two places of one token, a tag, a token that the vocabulary has not, twice in the second row.
COPIES_BS = torch.tensor([[4, 4, -1, V + 3, 5], [V + 0, 6, V + 0, -1, -1]])


class Case:
    def __init__(self, dtype: torch.dtype = torch.float64, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.pointer = PointerGenerator(D).to(dtype)
        self.logits_BTV = torch.randn(B, T, V, dtype=dtype, requires_grad=True)
        self.features_BTD = torch.randn(B, T, D, dtype=dtype, requires_grad=True)
        self.scores_BTS = torch.randn(B, T, S, dtype=dtype, requires_grad=True)
        self.copies_BS = COPIES_BS

    def log_probs(self) -> Tensor:
        weights_BTS = self.scores_BTS.softmax(dim=-1)
        found: Tensor = self.pointer(
            self.logits_BTV, self.features_BTD, weights_BTS, self.copies_BS
        )
        return found


def by_loops(case: Case, row: int, step: int) -> list[float]:
    """g · p(w) and (1 − g) · α of every place; what cannot be copied is left to the vocabulary."""
    feature_D = case.features_BTD[row, step]
    gate = 1 / (1 + math.exp(-case.pointer.gate(feature_D).item()))
    weights = case.scores_BTS[row, step].softmax(dim=0).tolist()
    found, generated = [0.0] * (V + S), gate
    for place, copied in enumerate(COPIES_BS[row].tolist()):
        if copied < 0:
            generated += (1 - gate) * weights[place]
        else:
            found[copied] += (1 - gate) * weights[place]
    for token, p in enumerate(case.logits_BTV[row, step].softmax(dim=0).tolist()):
        found[token] += generated * p
    return found


def test_the_mixture_is_that_of_the_paper_and_sums_to_one() -> None:
    case = Case()
    probs_BTX = case.log_probs().exp()
    assert torch.allclose(probs_BTX.sum(dim=-1), torch.ones(B, T, dtype=torch.float64))
    for row in range(B):
        for step in range(T):
            assert probs_BTX[row, step].tolist() == pytest.approx(by_loops(case, row, step))
    assert probs_BTX[0, 0, V + 1] == 0  # that token does not stand in the source


def test_of_bfloat16_the_probabilities_are_computed_in_float32() -> None:
    exact, half = Case(torch.float32), Case(torch.float32)
    half.logits_BTV = exact.logits_BTV.bfloat16()
    found = half.log_probs()
    assert found.dtype == torch.float32
    assert torch.allclose(found.exp().sum(dim=-1), torch.ones(B, T), atol=1e-5)


@pytest.mark.parametrize("gate", [-200.0, 200.0])
def test_a_closed_gate_gives_finite_gradients(gate: float) -> None:
    case = Case()
    with torch.no_grad():
        case.pointer.gate.weight.zero_()
        case.pointer.gate.bias.fill_(gate)
    targets_BT = torch.tensor([[4, V + 3, 1], [V + 0, 6, 2]])
    loss = mixture_loss(lambda rows: case.log_probs()[rows], targets_BT, V, S, smoothing=0.1)
    loss.total.backward()
    assert bool(loss.total.isfinite())
    for each in (case.logits_BTV, case.features_BTD, case.scores_BTS, case.pointer.gate.bias):
        assert bool(each.grad.isfinite().all())


@pytest.mark.parametrize(("smoothing", "r_drop"), [(0.0, 0.0), (0.1, 2.0)])
def test_gradients_are_those_of_finite_differences(smoothing: float, r_drop: float) -> None:
    case = Case()
    # With R-Drop both rows are the same pair.
    targets_BT = torch.tensor([[4, V + 3, 0], [V + 0, 6, 2]])
    if r_drop:
        targets_BT, case.copies_BS = targets_BT[:1].expand(2, -1), COPIES_BS[:1].expand(2, -1)

    def total(*_: Tensor) -> Tensor:
        return mixture_loss(
            lambda rows: case.log_probs()[rows], targets_BT, V, S, smoothing, r_drop
        ).total

    inputs = (case.logits_BTV, case.features_BTD, case.scores_BTS, *case.pointer.gate.parameters())
    assert torch.autograd.gradcheck(total, inputs, fast_mode=True)


def test_the_loss_is_the_sum_over_tokens_with_smoothing_over_the_vocabulary() -> None:
    case = Case()
    targets_BT = torch.tensor([[4, V + 3, 0], [V + 0, 6, 2]])
    loss = mixture_loss(lambda rows: case.log_probs()[rows], targets_BT, V, S, smoothing=0.2)
    nll, total, correct = 0.0, 0.0, 0
    for row in range(B):
        for step in range(T):
            if (wanted := int(targets_BT[row, step])) == 0:
                continue
            probs = by_loops(case, row, step)
            nll -= math.log(probs[wanted])
            total -= 0.8 * math.log(probs[wanted]) + 0.2 * sum(map(math.log, probs[:V])) / V
            correct += wanted == max(range(V + S), key=probs.__getitem__)
    assert float(loss.nll) == pytest.approx(nll)
    assert float(loss.total) == pytest.approx(total)
    assert (float(loss.correct), int(loss.tokens)) == (correct, 5)


def test_r_drop_adds_the_divergence_of_the_two_passes() -> None:
    case = Case()
    case.copies_BS = COPIES_BS[:1].expand(2, -1)
    log_probs_BTX = case.log_probs()
    targets_BT = torch.tensor([[4, V + 3, 0], [4, V + 3, 0]])
    loss = mixture_loss(lambda rows: log_probs_BTX[rows], targets_BT, V, S, r_drop=3.0)
    p_TX, q_TX = log_probs_BTX[:, :2].exp()
    apart = sum(
        (p - q) * math.log(p / q)
        for p, q in zip(p_TX.flatten().tolist(), q_TX.flatten().tolist(), strict=True)
        if p > 0
    )
    assert float(loss.total) == pytest.approx(float(loss.nll) + 3.0 * apart / 2)


def test_in_parts_the_loss_and_its_gradients_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for size in (10**6, 1):
        monkeypatch.setattr("transduce.nn.copying.CHUNK", {"cpu": size})
        case = Case()
        loss = mixture_loss(
            lambda rows: case.log_probs()[rows],  # noqa: B023
            torch.tensor([[4, V + 3, 0], [V + 0, 6, 2]]),
            V,
            S,
            smoothing=0.1,
        )
        loss.total.backward()
        found.append((loss.total.detach(), case.logits_BTV.grad, case.scores_BTS.grad))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other)


def test_a_hidden_token_is_unknown_wherever_it_stands_on_either_side() -> None:
    """Source vocabulary of 20 tokens, target vocabulary of 10; source 11 is target 5, 12 is 6."""
    source_BS = torch.tensor([[15, 11, 12, 11, 3]])
    copies_BS = torch.tensor([[-1, 5, 6, 5, -1]])
    target_BT = torch.tensor([[2, 5, 6, 5, 8, 3]])
    drawn_BS = torch.tensor([[True, True, False, False, True]])
    source, target = hide(source_BS, target_BT, copies_BS, drawn_BS, (20, 10))
    assert source.tolist() == [[15, 20 + 10 + 1, 12, 20 + 10 + 1, 3]]
    assert target.tolist() == [[2, 10 + 1, 6, 10 + 1, 8, 3]]
