"""Softmax cross-entropy of each row and its gradient with respect to the logits, in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.nn.triton import kernels


def softmax_gradient(
    logits_NV: Tensor, targets_N: Tensor, counted_N: Tensor, smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss, negative log-likelihood and correctness of each row, in float32 or better; and the
    gradient.

    The softmax is computed in that type too. With `gradient`, the fourth result is ∂loss/∂logits =
    softmax − target distribution in the type of the logits, zero for ignored rows, and the logits
    may be overwritten. The other three are not masked.
    """
    if logits_NV.is_cuda:
        return _on_cuda(logits_NV, targets_N, counted_N, smoothing, gradient)
    given = logits_NV.dtype
    # Also for bfloat16 logits: otherwise a probability near one could not be told from one.
    logits_NV = logits_NV.to(torch.promote_types(given, torch.float32))
    at_N1 = targets_N[:, None]
    target_N = logits_NV.gather(1, at_N1).squeeze(1)
    hit_N = target_N >= logits_NV.amax(dim=-1)
    p_NV = logits_NV.softmax(dim=-1)
    nll_N = -p_NV.gather(1, at_N1).squeeze(1).log()
    lost_N = nll_N > 60  # such probabilities underflow, and have no logarithm
    if bool(lost_N.any()):
        nll_N[lost_N] = -logits_NV[lost_N].log_softmax(-1).gather(1, at_N1[lost_N])[:, 0]
    loss_N = nll_N
    if smoothing > 0:
        uniform_N = nll_N + target_N - logits_NV.mean(dim=-1)
        loss_N = (1 - smoothing) * nll_N + smoothing * uniform_N
    if gradient:
        if smoothing > 0:
            p_NV.sub_(smoothing / p_NV.shape[1])
        p_NV.scatter_add_(1, at_N1, torch.full_like(target_N[:, None], smoothing - 1))
        if not bool(counted_N.all()):
            p_NV.masked_fill_(~counted_N[:, None], 0.0)
    return loss_N, nll_N, hit_N, p_NV.to(given)


def _on_cuda(
    logits_NV: Tensor, targets_N: Tensor, counted_N: Tensor, smoothing: float, gradient: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, vocabulary = logits_NV.shape
    loss_N = torch.empty(rows, dtype=torch.float32, device=logits_NV.device)
    nll_N = torch.empty_like(loss_N)
    hit_N = torch.empty(rows, dtype=torch.bool, device=logits_NV.device)
    block = min(1 << (vocabulary - 1).bit_length(), 8192)
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
        num_warps=8,
    )
    return loss_N, nll_N, hit_N, logits_NV
