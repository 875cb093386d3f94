"""Relative positions as T5 has them: a bias of the scores for each head and bucket of distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class BucketedBias(nn.Module):
    """Scores q_tᵀ k_s / √K + b_{h, bucket(s − t)}; the b are learned, shared by all layers.

    Raffel et al. 2020, section 2.1, https://arxiv.org/abs/1910.10683. Small distances have a bucket
    each, larger ones share buckets that grow as their logarithm, and all from `distance` on have
    one. In both directions, half of the buckets are for keys before the query and half for keys
    after it.
    """

    def __init__(self, heads: int, buckets: int, distance: int, both_directions: bool) -> None:
        super().__init__()
        minimum = 4 if both_directions else 2
        if buckets < minimum or buckets % 2:
            raise ValueError(f"There must be an even number of buckets, {minimum} or more.")
        self.exact = (buckets // 2 if both_directions else buckets) // 2
        if distance <= self.exact:
            raise ValueError(
                f"A distance of {distance} is too small for {buckets} buckets, of which "
                f"{self.exact} are for single distances: make it larger."
            )
        self.heads, self.buckets, self.distance = heads, buckets, distance
        self.both_directions = both_directions
        self.table_RH = nn.Parameter(torch.empty(buckets, heads))
        nn.init.normal_(self.table_RH, std=0.02)

    def forward(self, T: int, S: int) -> Tensor:
        """The bias_HTS of T queries, which are the last T of S positions, and S keys."""
        device = self.table_RH.device
        query_T1 = torch.arange(S - T, S, device=device)[:, None]
        away_TS = torch.arange(S, device=device) - query_T1
        return self.table_RH[self.bucket(away_TS)].permute(2, 0, 1)

    def bucket(self, away: Tensor) -> Tensor:
        """The bucket of each distance: how far a key is behind its query, negative if before it."""
        first, maximum = torch.zeros_like(away), self.buckets
        if self.both_directions:
            maximum //= 2
            first = (away > 0).long() * maximum
            away = away.abs()
        else:
            away = (-away).clamp(min=0)
        # In float32 and in this order, as in T5: borders of buckets depend on the rounding.
        far = torch.log(away.clamp(min=1).float() / self.exact)
        far = far / math.log(self.distance / self.exact) * (maximum - self.exact)
        large = (self.exact + far.long()).clamp(max=maximum - 1)
        return first + torch.where(away < self.exact, away, large)
