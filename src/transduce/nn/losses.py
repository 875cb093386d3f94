"""How wrong the predictions are, and how often right: cross-entropy with label smoothing."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Elsewhere the host would wait until the accelerator has counted the rows to select.
SELECTING_DEVICES = frozenset({"cpu"})


class Loss(NamedTuple):
    """Sums over the tokens of a batch; divide by `tokens` for a mean, after adding up batches."""

    total: Tensor
    """What training minimises: the smoothed loss, differentiable."""
    nll: Tensor
    """−Σ ln p(target), without smoothing, detached: its mean's exponential is the perplexity."""
    correct: Tensor
    """How many tokens had the target as the most probable one."""
    tokens: Tensor
    """How many tokens were counted."""


def cross_entropy(
    features_BTD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_BT: Tensor,
    smoothing: float = 0.0,
    ignore: int = 0,
) -> Loss:
    """Cross-entropy of softmax(features weightᵀ + bias) against the targets that are not `ignore`.

    With smoothing ε the target distribution is (1 − ε) on the target and ε/V on every token, itself
    included: Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, as in torch's cross_entropy.
    """
    features_ND, targets_N = features_BTD.flatten(0, -2), targets_BT.flatten()
    counted_N = targets_N != ignore
    tokens = counted_N.sum()
    if features_ND.device.type in SELECTING_DEVICES:
        features_ND, targets_N = features_ND[counted_N], targets_N[counted_N]
        counted_N = counted_N[counted_N]
    targets_N = targets_N.masked_fill(~counted_N, 0)  # `ignore` need not be a token: −100, say

    logits_NV = F.linear(features_ND, weight_VD, bias_V)
    logits_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    log_probability_NV = logits_NV.log_softmax(dim=-1)

    nll_N = -log_probability_NV.gather(1, targets_N[:, None]).squeeze(1)
    loss_N = nll_N
    if smoothing > 0:
        uniform_N = -log_probability_NV.mean(dim=-1)
        loss_N = (1 - smoothing) * nll_N + smoothing * uniform_N
    correct_N = logits_NV.argmax(dim=-1) == targets_N

    return Loss(
        total=loss_N.masked_fill(~counted_N, 0.0).sum(),
        nll=nll_N.detach().masked_fill(~counted_N, 0.0).sum(),
        correct=(correct_N & counted_N).sum(),
        tokens=tokens,
    )
