"""Softmax, the loss of each row, and its gradient in place of the logits, in one go."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.nn.kernels import kernels


def softmax_gradient_(
    logits_NV: Tensor, targets_N: Tensor, counted_N: Tensor, smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, negative log-probability and hit of each row, in float32 or better.

    With `gradient`, the logits are overwritten by ∂loss/∂logits = softmax − target distribution;
    rows that are not counted get zeros. Rows of the three results are not masked.
    """
    if logits_NV.is_cuda:
        return _on_cuda(logits_NV, targets_N, counted_N, smoothing, gradient)
    exact = torch.promote_types(logits_NV.dtype, torch.float32)
    x_NV = logits_NV.to(exact)
    lse_N = x_NV.logsumexp(dim=-1)
    target_N = x_NV.gather(1, targets_N[:, None]).squeeze(1)
    nll_N = lse_N - target_N
    hit_N = target_N >= x_NV.amax(dim=-1)
    loss_N = nll_N
    if smoothing > 0:
        uniform_N = lse_N - x_NV.mean(dim=-1)
        loss_N = (1 - smoothing) * nll_N + smoothing * uniform_N
    if gradient:
        p_NV = x_NV.sub_(lse_N[:, None]).exp_()
        if smoothing > 0:
            p_NV.sub_(smoothing / p_NV.shape[1])
        away_N1 = torch.full_like(target_N[:, None], smoothing - 1)
        p_NV.scatter_add_(1, targets_N[:, None], away_N1)
        p_NV.masked_fill_(~counted_N[:, None], 0.0)
        if p_NV is not logits_NV:
            logits_NV.copy_(p_NV)
    return loss_N, nll_N, hit_N


def _on_cuda(
    logits_NV: Tensor, targets_N: Tensor, counted_N: Tensor, smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows, vocabulary = logits_NV.shape
    loss_N = torch.empty(rows, dtype=torch.float32, device=logits_NV.device)
    nll_N = torch.empty_like(loss_N)
    hit_N = torch.empty(rows, dtype=torch.bool, device=logits_NV.device)
    block = min(1 << (vocabulary - 1).bit_length(), 32768)
    kernels().softmax_gradient[(rows,)](
        logits_NV,
        logits_NV.stride(0),
        targets_N,
        counted_N,
        loss_N,
        nll_N,
        hit_N,
        vocabulary,
        smoothing,
        gradient,
        block,
        num_warps=32 if block >= 8192 else 8,
    )
    return loss_N, nll_N, hit_N
