"""Word-level knowledge distillation: the distribution of a teacher as a second target.

Hinton et al. 2015, https://arxiv.org/abs/1503.02531; for sequences Kim and Rush 2016,
https://arxiv.org/abs/1606.07947. As in `cross_entropy`, logits exist a chunk of rows at a time and
are turned into their gradient at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.loss.cross_entropy import CHUNK, SELECTING_DEVICES, Loss
from transduce.nn.loss.output_gradients import OutputGradients
from transduce.nn.loss.softmax import softmax_gradient
from transduce.nn.mixed_precision import cast


class Output(NamedTuple):
    """What logits are computed from: features weightᵀ + bias."""

    features_BTD: Tensor
    weight_VD: Tensor
    bias_V: Tensor | None


def distillation_loss(
    student: Output,
    teacher: Output,
    targets_BT: Tensor,
    weight: float,
    temperature: float = 1.0,
    smoothing: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """(1 − weight) · cross-entropy + weight · T² · KL(q ‖ p), summed over the tokens.

    q and p are the distributions of teacher and student, softmax(logits / T). The factor T² keeps
    the gradient of the second term at the size of the first. Only the student has a gradient. See
    `cross_entropy` for smoothing and ignore.
    """
    counted_N = targets_BT.flatten() != ignore
    tokens = counted_N.sum()
    targets_N = targets_BT.flatten()
    rows = [one.features_BTD.flatten(0, -2) for one in (student, teacher)]
    if targets_N.device.type in SELECTING_DEVICES:
        rows, targets_N = [one[counted_N] for one in rows], targets_N[counted_N]
        counted_N = counted_N[counted_N]
    targets_N = targets_N.masked_fill(~counted_N, 0)
    if torch.is_autocast_enabled(targets_N.device.type):
        dtype = torch.get_autocast_dtype(targets_N.device.type)
        rows = [one.to(dtype) for one in rows]
    total, nll, correct = _Distilled.apply(  # type: ignore[no-untyped-call]
        rows[0],
        student.weight_VD,
        student.bias_V,
        rows[1].detach(),
        teacher.weight_VD.detach(),
        None if teacher.bias_V is None else teacher.bias_V.detach(),
        targets_N,
        counted_N,
        (weight, temperature, smoothing),
    )
    return Loss(total, nll, correct, tokens)


class _Distilled(torch.autograd.Function):
    """The loss, and in the same pass its gradient with respect to the student's output."""

    @staticmethod
    def forward(
        ctx: Any,
        features_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        taught_NE: Tensor,
        teacher_VE: Tensor,
        teacher_bias_V: Tensor | None,
        targets_N: Tensor,
        counted_N: Tensor,
        numbers: tuple[float, float, float],
    ) -> tuple[Tensor, Tensor, Tensor]:
        share, temperature, smoothing = numbers
        exact = torch.promote_types(features_ND.dtype, torch.float32)
        given = features_ND.dtype
        weight_cast_VD, teacher_cast_VE = cast(weight_VD, given), cast(teacher_VE, given)
        biases = [None if b is None else cast(b, given) for b in (bias_V, teacher_bias_V)]
        found = OutputGradients.zeros(features_ND, weight_VD, bias_V)
        total, nll = torch.zeros(2, dtype=exact, device=features_ND.device).unbind()
        correct = torch.zeros((), dtype=torch.int64, device=features_ND.device)
        # Smaller chunks than in `cross_entropy`: there are several tables of that size.
        size = max(1, CHUNK.get(features_ND.device.type, 2**25) // 4 // weight_VD.shape[0])
        for start in range(0, len(features_ND), size):
            rows = slice(start, start + size)
            x_CD, real_C = features_ND[rows], counted_N[rows]
            logits_CV = F.linear(x_CD, weight_cast_VD, biases[0])
            taught_CV = F.linear(taught_NE[rows], teacher_cast_VE, biases[1])
            log_p_CV = (logits_CV.to(exact) / temperature).log_softmax(-1)
            log_q_CV = (taught_CV.to(exact) / temperature).log_softmax(-1)
            q_CV = log_q_CV.exp()
            apart_C = temperature**2 * (q_CV * (log_q_CV - log_p_CV)).sum(-1)
            # ∂ T² KL(q‖p) / ∂ logits = T (p − q)
            by_apart_CV = (log_p_CV.exp() - q_CV).mul_(temperature)
            loss_C, nll_C, hit_C, by_logits_CV = softmax_gradient(
                logits_CV, targets_N[rows], real_C, smoothing, gradient=True
            )
            whole_C = (1 - share) * loss_C + share * apart_C
            total = total + whole_C.masked_fill(~real_C, 0.0).sum()
            nll = nll + nll_C.masked_fill(~real_C, 0.0).sum()
            correct = correct + (hit_C & real_C).sum()
            by_apart_CV.mul_(share).masked_fill_(~real_C[:, None], 0.0)
            by_CV = by_apart_CV.add_(by_logits_CV, alpha=1 - share).to(given)
            found.add(rows, by_CV, x_CD, weight_cast_VD)
        ctx.found = found
        ctx.mark_non_differentiable(nll, correct)
        return total, nll, correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*ctx.found.scaled(gradients[0]), None, None, None, None, None, None)
