"""Guided attention: a loss that draws attention to the diagonal of target and source.

Tachibana et al. 2017, https://arxiv.org/abs/1710.08969, equation 3: what is written follows what is
heard from its beginning to its end, so attention far from the diagonal costs.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 0.2  # g of the paper: how far from the diagonal, as a share of the whole, is free


def guided_attention_loss(
    weights_BHTS: Tensor, counted_BT: Tensor, source_lengths_B: Tensor
) -> Tensor:
    """Σ_t Σ_s α_ts (1 − exp(−(t/T − s/S)² / 2g²)), the mean over heads, summed over a batch.

    Places t/T and s/S are those of the middle of a token and of a state. A token costs from 0, on
    the diagonal, to nearly 1.

    Args:
        weights_BHTS: attention weights; beyond a source they are zero.
        counted_BT: bool, the tokens that count, such as without padding; T is their number.
        source_lengths_B: how many states of each source there are.
    """
    device = weights_BHTS.device
    tokens_B1 = counted_BT.sum(dim=1, keepdim=True).clamp(min=1)
    states_B1 = source_lengths_B.to(device, non_blocking=True).clamp(min=1)[:, None]
    target_BT = (counted_BT.cumsum(dim=1) - 0.5) / tokens_B1
    source_BS = (torch.arange(weights_BHTS.shape[3], device=device) + 0.5) / states_B1
    apart_BTS = target_BT[:, :, None] - source_BS[:, None]
    cost_BTS = 1 - torch.exp(-apart_BTS.square() / (2 * WIDTH**2))
    cost_BTS = cost_BTS.where(counted_BT[:, :, None], 0.0)
    return (weights_BHTS.float().mean(dim=1) * cost_BTS).sum()
