"""The lattice of a transducer against sums over all of its alignments, one by one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from transduce.nn.transducer.lattice import (
    Lattice,
    best_path,
    label_log_probs,
    total_log_prob,
)
from transduce.nn.transducer.loss import transducer_loss

V = 4  # the blank is 0


def alignments(log_probs_SPV: Tensor, labels: list[int]) -> dict[tuple[int, ...], float]:
    """The log-probability of each alignment, by the states at which the labels are emitted."""
    S = len(log_probs_SPV)
    found = {}
    for frames in itertools.combinations_with_replacement(range(S), len(labels)):
        total, said = 0.0, 0
        for state in range(S):
            while said < len(labels) and frames[said] == state:
                total += float(log_probs_SPV[state, said, labels[said]])
                said += 1
            total += float(log_probs_SPV[state, said, 0])
        found[frames] = total
    return found


def brute_force(log_probs_SPV: Tensor, labels: list[int]) -> float:
    return math.log(sum(map(math.exp, alignments(log_probs_SPV, labels).values())))


CASES = [(4, [1, 2, 3]), (1, [2, 2]), (3, []), (1, []), (2, [3])]


def batch() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """All cases in one batch; what lies beyond a length is noise."""
    torch.manual_seed(0)
    S, U = max(s for s, _ in CASES), max(len(labels) for _, labels in CASES)
    logits_BSPV = 2 * torch.randn(len(CASES), S, U + 1, V, dtype=torch.float64)
    targets_BU = torch.randint(1, V, (len(CASES), U))
    for row, (_, labels) in enumerate(CASES):
        targets_BU[row, : len(labels)] = torch.tensor(labels, dtype=torch.int64)
    lengths_B = torch.tensor([s for s, _ in CASES])
    return logits_BSPV, lengths_B, targets_BU, torch.tensor([len(labels) for _, labels in CASES])


def test_the_loss_is_the_sum_over_all_alignments() -> None:
    logits_BSPV, *rest = batch()
    loss_B, _ = transducer_loss(logits_BSPV, *rest)
    for row, (S, labels) in enumerate(CASES):
        log_probs_SPV = logits_BSPV[row, :S].log_softmax(dim=-1)
        assert loss_B[row].item() == pytest.approx(-brute_force(log_probs_SPV, labels), abs=1e-9)


def test_its_gradient_is_that_of_finite_differences() -> None:
    logits_BSPV, *rest = batch()
    logits_BSPV, rest = logits_BSPV[:2].requires_grad_(), [x_B[:2] for x_B in rest]
    weight_B = torch.tensor([1.0, 0.5], dtype=torch.float64)
    torch.autograd.gradcheck(
        lambda x: (weight_B * transducer_loss(x, *rest)[0]).sum(), logits_BSPV, fast_mode=True
    )


def test_the_blank_may_be_any_token() -> None:
    logits_BSPV, lengths_B, targets_BU, labels_B = batch()
    last = logits_BSPV.roll(-1, dims=-1).requires_grad_()  # the blank is V - 1
    logits_BSPV.requires_grad_()
    loss_B, correct_B = transducer_loss(logits_BSPV, lengths_B, targets_BU, labels_B)
    other_B, others_B = transducer_loss(last, lengths_B, targets_BU - 1, labels_B, V - 1)
    assert torch.allclose(loss_B, other_B)
    assert torch.allclose(correct_B, others_B)
    loss_B.sum().backward()
    other_B.sum().backward()
    assert logits_BSPV.grad is not None
    assert last.grad is not None
    assert torch.allclose(logits_BSPV.grad, last.grad.roll(1, dims=-1))


def test_padding_gets_no_gradient_and_changes_nothing() -> None:
    logits_BSPV, lengths_B, targets_BU, labels_B = batch()
    logits_BSPV.requires_grad_()
    transducer_loss(logits_BSPV, lengths_B, targets_BU, labels_B)[0].sum().backward()
    assert logits_BSPV.grad is not None
    for row, (S, labels) in enumerate(CASES):
        alone = logits_BSPV[row : row + 1, :S, : len(labels) + 1].detach().requires_grad_()
        lengths = torch.tensor([S]), targets_BU[row : row + 1, : len(labels)], labels_B[row, None]
        transducer_loss(alone, *lengths)[0].sum().backward()
        inside = logits_BSPV.grad[row, :S, : len(labels) + 1]
        assert alone.grad is not None
        assert torch.allclose(inside, alone.grad[0], atol=1e-12)
        assert logits_BSPV.grad[row].abs().sum().item() == pytest.approx(inside.abs().sum().item())


def test_the_expected_number_of_correct_labels() -> None:
    """Where one alignment has nearly all of the probability, it is that of its labels."""
    logits_BSPV = torch.zeros(1, 2, 3, V)
    logits_BSPV[..., 0] = 0.1
    for state, said, token in ((0, 0, 1), (0, 1, 0), (1, 1, 2), (1, 2, 0)):
        logits_BSPV[0, state, said, token] = 50.0
    lengths = torch.tensor([2]), torch.tensor([[1, 2]]), torch.tensor([2])
    assert transducer_loss(logits_BSPV, *lengths)[1].tolist() == pytest.approx([3.0])
    # Two labels the other way round are as wrong as can be; the end is right.
    swapped = torch.tensor([2]), torch.tensor([[2, 1]]), torch.tensor([2])
    assert transducer_loss(logits_BSPV, *swapped)[1].tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("spread", [1.0, 0.2])  # with little, many paths together are worth more
def test_the_best_path_is_the_most_probable_alignment(spread: float) -> None:
    logits_BSPV, *rest = batch()
    log_probs_BSPV = (spread * logits_BSPV).log_softmax(dim=-1)
    found = best_path(Lattice.of(log_probs_BSPV, *rest))
    for row, (S, labels) in enumerate(CASES):
        every = alignments(log_probs_BSPV[row, :S], labels)
        assert tuple(found[row]) == max(every, key=every.__getitem__)


def test_probabilities_of_labels_are_those_of_outputs_that_begin_so() -> None:
    """Their product is the probability of the labels; and an output that is any label and then
    ends, or ends at once, or goes on, is certain."""
    logits_BSPV, lengths_B, targets_BU, labels_B = batch()
    lattice = Lattice.of(logits_BSPV.log_softmax(dim=-1), lengths_B, targets_BU, labels_B)
    each_BP = label_log_probs(lattice)
    assert torch.allclose(each_BP.sum(dim=1), total_log_prob(lattice), atol=1e-9)
    assert bool((each_BP <= 1e-12).all())
    # All that an output may begin with: each label, and the end.
    firsts = []
    for label in range(1, V):
        given = torch.full_like(targets_BU[:1], label), torch.tensor([1])
        first = Lattice.of(logits_BSPV[:1].log_softmax(dim=-1), lengths_B[:1], *given)
        firsts.append(label_log_probs(first)[0, 0].exp().item())
    nothing = Lattice.of(
        logits_BSPV[:1].log_softmax(dim=-1), lengths_B[:1], targets_BU[:1], torch.tensor([0])
    )
    assert sum(firsts) + label_log_probs(nothing)[0, 0].exp().item() == pytest.approx(1.0)
