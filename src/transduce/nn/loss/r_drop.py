"""R-Drop: two forward passes with different dropout, and a KL divergence between them as
regularisation.

Liang et al. 2021, https://arxiv.org/abs/2106.14448. As in `cross_entropy`, logits exist a chunk of
rows at a time and are turned into their gradient at once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.loss.cross_entropy import CHUNK, SELECTING_DEVICES, Loss
from transduce.nn.loss.output_gradients import OutputGradients
from transduce.nn.loss.softmax import softmax_gradient
from transduce.nn.mixed_precision import cast
from transduce.nn.triton import kernels


def r_drop_cross_entropy(
    features_BTD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_BT: Tensor,
    r_drop: float,
    smoothing: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """The mean cross-entropy of two passes plus `r_drop` times their KL divergence.

    The second half of the rows, along the first dimension that is not 1, is the second pass over
    the same data. The divergence is symmetric, ½ (KL(p‖q) + KL(q‖p)), and summed. See
    `cross_entropy` for the other arguments.
    """
    features_ND, targets_N = features_BTD.flatten(0, -2), targets_BT.flatten()
    counted_N = targets_N != ignore
    tokens = counted_N.sum() // 2
    if features_ND.device.type in SELECTING_DEVICES:
        features_ND, targets_N = features_ND[counted_N], targets_N[counted_N]
        counted_N = counted_N[counted_N]
    targets_N = targets_N.masked_fill(~counted_N, 0)
    if torch.is_autocast_enabled(features_ND.device.type):
        features_ND = features_ND.to(torch.get_autocast_dtype(features_ND.device.type))
    total, nll, correct = _Twice.apply(  # type: ignore[no-untyped-call]
        features_ND, weight_VD, bias_V, targets_N, counted_N, smoothing, r_drop
    )
    return Loss(total, nll, correct, tokens)


class _Twice(torch.autograd.Function):
    """The loss of both passes together, and in the same pass its gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        features_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        counted_N: Tensor,
        smoothing: float,
        r_drop: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        exact = torch.promote_types(features_ND.dtype, torch.float32)
        weight_cast_VD = cast(weight_VD, features_ND.dtype)
        bias_cast_V = None if bias_V is None else cast(bias_V, features_ND.dtype)
        found = OutputGradients.zeros(features_ND, weight_VD, bias_V)
        total, nll, correct = torch.zeros(3, dtype=exact, device=features_ND.device).unbind()
        half = len(features_ND) // 2
        # Smaller chunks than in `cross_entropy`: there are two or more tables of that size.
        tables = 2 if features_ND.is_cuda else 4
        size = max(1, CHUNK.get(features_ND.device.type, 2**25) // tables // weight_VD.shape[0])
        for start in range(0, half, size):
            first = slice(start, min(start + size, half))
            second = slice(half + first.start, half + first.stop)
            logits = [
                F.linear(features_ND[rows], weight_cast_VD, bias_cast_V) for rows in (first, second)
            ]
            real_C = counted_N[first]
            loss_C, nll_C, hit_C, *by_logits = r_drop_gradient(
                logits[0], logits[1], targets_N[first], real_C, smoothing, r_drop
            )
            total = total + loss_C.masked_fill(~real_C, 0.0).sum()
            nll = nll + nll_C.masked_fill(~real_C, 0.0).sum()
            correct = correct + hit_C.masked_fill(~real_C, 0.0).sum()
            for rows, by_logits_CV in zip((first, second), by_logits, strict=True):
                found.add(rows, by_logits_CV, features_ND[rows], weight_cast_VD)
        ctx.found = found
        ctx.mark_non_differentiable(nll, correct)
        return total, nll, correct

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (*ctx.found.scaled(gradients[0]), None, None, None, None)


def r_drop_gradient(
    one_NV: Tensor,
    other_NV: Tensor,
    targets_N: Tensor,
    counted_N: Tensor,
    smoothing: float,
    r_drop: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Loss, negative log-likelihood and correctness of each pair of rows; the gradient of both
    logits.

    Negative log-likelihood and correctness are means of the two passes; only gradients are masked
    where a row is ignored, and the logits may be overwritten by them.
    """
    if one_NV.is_cuda:
        return _on_cuda(one_NV, other_NV, targets_N, counted_N, smoothing, r_drop)
    exact = torch.promote_types(one_NV.dtype, torch.float32)
    log_p_NV, log_q_NV = one_NV.to(exact).log_softmax(-1), other_NV.to(exact).log_softmax(-1)
    p_NV, q_NV, apart_NV = log_p_NV.exp(), log_q_NV.exp(), log_p_NV - log_q_NV
    p_from_q_N1 = (p_NV * apart_NV).sum(-1, keepdim=True)
    q_from_p_N1 = -(q_NV * apart_NV).sum(-1, keepdim=True)
    # ∂KL(p‖q)/∂logits of p = p (ln p/q − KL(p‖q)); ∂KL(q‖p)/∂logits of p = p − q
    apart_by = (
        p_NV * (apart_NV - p_from_q_N1) + p_NV - q_NV,
        q_NV * (-apart_NV - q_from_p_N1) + q_NV - p_NV,
    )
    found = [
        softmax_gradient(logits_NV.to(exact), targets_N, counted_N, smoothing, gradient=True)
        for logits_NV in (one_NV, other_NV)
    ]
    loss_N, nll_N, hit_N = (
        (mine.to(exact) + theirs.to(exact)) / 2
        for mine, theirs in zip(found[0][:3], found[1][:3], strict=True)
    )
    loss_N = loss_N + r_drop * (p_from_q_N1 + q_from_p_N1).squeeze(1) / 2
    by_one_NV, by_other_NV = (
        (each[3] / 2 + (r_drop / 2 * by_NV).masked_fill(~counted_N[:, None], 0.0)).to(one_NV)
        for each, by_NV in zip(found, apart_by, strict=True)
    )
    return loss_N, nll_N, hit_N, by_one_NV, by_other_NV


def _on_cuda(
    one_NV: Tensor,
    other_NV: Tensor,
    targets_N: Tensor,
    counted_N: Tensor,
    smoothing: float,
    r_drop: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    rows, vocabulary = one_NV.shape
    assert one_NV.stride() == other_NV.stride()
    loss_N, nll_N, hit_N = torch.empty(3, rows, device=one_NV.device).unbind()
    kernels().r_drop_gradient[(rows,)](
        one_NV,
        other_NV,
        one_NV.stride(0),
        targets_N,
        counted_N,
        loss_N,
        nll_N,
        hit_N,
        vocabulary,
        smoothing,
        r_drop,
        block=min(1 << (vocabulary - 1).bit_length(), 4096),
        num_warps=8,
    )
    return loss_N, nll_N, hit_N, one_NV, other_NV
