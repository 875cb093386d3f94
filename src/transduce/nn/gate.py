"""A gate: factors on what a part of a network computes, to see what the part is worth.

Zero a head, half a sublayer, hide a source position: Michel et al. 2019,
https://arxiv.org/abs/1905.10650, and Voita et al. 2019, https://arxiv.org/abs/1905.09418.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Gate:
    """Factors on a part; what is not named has the factor 1."""

    output: float = 1.0
    """Of all that the part computes, its bias included."""
    heads: Mapping[int, float] = field(default_factory=dict)
    """Of what a head of attention computes, before the output projection."""
    positions: Mapping[int, float] = field(default_factory=dict)
    """Of what attention reads at a position: a factor on its weight, after the softmax."""

    @property
    def is_open(self) -> bool:
        """Whether it changes nothing."""
        factors = (self.output, *self.heads.values(), *self.positions.values())
        return all(factor == 1.0 for factor in factors)

    def on_values(self, values_BHSK: Tensor) -> Tensor:
        """What is read, by position; Σ_s (g_s α_ts) v_s = Σ_s α_ts (g_s v_s)."""
        there = [place for place in self.positions if place < values_BHSK.shape[-2]]
        if not there:
            return values_BHSK
        factors_S1 = values_BHSK.new_ones(values_BHSK.shape[-2], 1)
        for place in there:
            factors_S1[place] = self.positions[place]
        return values_BHSK * factors_S1

    def on_heads(self, context_BHTK: Tensor) -> Tensor:
        """What the heads have gathered."""
        if not self.heads:
            return context_BHTK
        factors_H11 = context_BHTK.new_ones(context_BHTK.shape[1], 1, 1)
        for head, factor in self.heads.items():
            factors_H11[head] = factor
        return context_BHTK * factors_H11

    def on_output(self, y: Tensor) -> Tensor:
        """All that the part gives."""
        return y if self.output == 1.0 else y * self.output
