"""The loss of a transducer: −ln of the sum over all alignments of the labels with the states.

Graves 2012, https://arxiv.org/abs/1211.3711, section 2.4.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transduce.nn.transducer.lattice import Lattice, steps, wanted


def transducer_loss(
    logits_BSPV: Tensor,
    lengths_B: Tensor,
    targets_BU: Tensor,
    labels_B: Tensor,
    blank: int = 0,
) -> tuple[Tensor, Tensor]:
    """−ln p(labels) of each row, differentiable, and how many labels are predicted correctly.

    A label is where it is emitted with the probability of the paths that do; it is correct where
    it is the most probable token there. The end counts as one: the blank after the last label.

    Args:
        logits_BSPV: of each token at state s after the first u labels, u from 0 to U.
        lengths_B: how many states of each row count; at least one.
        targets_BU: the labels; none of them may be the blank.
        labels_B: how many labels of each row count.
        blank: the token that stands for no label.
    """
    loss_B, correct_B = _Loss.apply(  # type: ignore[no-untyped-call]
        logits_BSPV, lengths_B, targets_BU, labels_B, blank
    )
    return loss_B, correct_B


class _Loss(torch.autograd.Function):
    """Log-probabilities become the gradient in place: one tensor as large as the logits."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_BSPV: Tensor,
        lengths_B: Tensor,
        targets_BU: Tensor,
        labels_B: Tensor,
        blank: int,
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(logits_BSPV.dtype, torch.float32)
        log_probs_BSPV = logits_BSPV.to(exact).log_softmax(dim=-1)
        lattice = Lattice.of(log_probs_BSPV, lengths_B, targets_BU, labels_B, blank)
        by_blank_BSP, by_label_BSP, total_B = steps(lattice)
        row_B = torch.arange(len(total_B), device=total_B.device)
        end = row_B, lattice.lengths_B - 1, lattice.labels_B
        most_BSP = log_probs_BSPV.amax(dim=-1)
        correct_B = (by_label_BSP * (lattice.label_BSP >= most_BSP)).sum(dim=(1, 2))
        correct_B = correct_B + (lattice.blank_BSP[end] >= most_BSP[end])
        if ctx.needs_input_grad[0]:
            gradient_BSPV = log_probs_BSPV.exp_()
            gradient_BSPV *= (by_blank_BSP + by_label_BSP)[..., None]
            gradient_BSPV[..., blank] -= by_blank_BSP
            label_BSP1 = wanted(targets_BU, gradient_BSPV)
            gradient_BSPV.scatter_add_(3, label_BSP1, -by_label_BSP[..., None])
            ctx.save_for_backward(gradient_BSPV.to(logits_BSPV.dtype))
        ctx.mark_non_differentiable(correct_B)
        return -total_B, correct_B

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient_BSPV,) = ctx.saved_tensors
        scale_B111 = gradients[0][:, None, None, None].to(gradient_BSPV.dtype)
        return gradient_BSPV * scale_B111, None, None, None, None
