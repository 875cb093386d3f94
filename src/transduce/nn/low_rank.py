"""Low-rank adapters of a weight matrix: LoRA and DoRA.

LoRA: W' = W + s B A with B [F, r] and A [r, D] (Hu et al. 2021, https://arxiv.org/abs/2106.09685).
DoRA: the rows of W' scaled to trained lengths m: m (W + s B A) / ‖W + s B A‖ (Liu et al. 2024,
https://arxiv.org/abs/2402.09353, the norm of each row taken as a constant in the backward pass,
section 4.3).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class LowRank(nn.Module):
    """The adapter of one matrix W [F, D]; at first it changes nothing, as B is zero."""

    def __init__(
        self,
        weight_FD: Tensor,
        rank: int,
        alpha: float,
        *,
        magnitude: bool = False,
        dropout: float = 0.0,
    ) -> None:
        """magnitude: DoRA. dropout: of the columns of A, while it trains."""
        super().__init__()
        outputs, inputs = weight_FD.shape
        self.scale = alpha / rank
        self.dropout = dropout
        self.A = nn.Parameter(weight_FD.new_empty(rank, inputs))
        self.B = nn.Parameter(weight_FD.new_zeros(outputs, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.magnitude = nn.Parameter(row_norms(weight_FD)) if magnitude else None

    def forward(self, weight_FD: Tensor) -> Tensor:
        """The adapted matrix W' of W."""
        if not (self.training and self.dropout):
            return adapted(weight_FD, self.A, self.B, self.scale, self.magnitude)
        # Dropping inputs for all positions alike is dropping columns of A.
        keep = 1.0 - self.dropout
        kept_D = torch.bernoulli(torch.full_like(self.A[0], keep)) / keep
        plain_FD = weight_FD + self.scale * (self.B @ (self.A * kept_D))
        if self.magnitude is None:
            return plain_FD
        norms_F = row_norms(weight_FD + self.scale * (self.B @ self.A))
        return (self.magnitude / norms_F)[:, None] * plain_FD


def adapted(
    weight_FD: Tensor, A_RD: Tensor, B_FR: Tensor, scale: float, magnitude_F: Tensor | None = None
) -> Tensor:
    """W + s B A; with magnitudes, its rows scaled to these lengths (DoRA)."""
    sum_FD = weight_FD + scale * (B_FR @ A_RD)
    if magnitude_F is None:
        return sum_FD
    return (magnitude_F / row_norms(sum_FD))[:, None] * sum_FD


def row_norms(weight_FD: Tensor) -> Tensor:
    """The length of each row, as a constant."""
    norms_F: Tensor = torch.linalg.vector_norm(weight_FD.detach(), dim=1)
    return norms_F
