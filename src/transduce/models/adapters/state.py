"""The weights of an adapter, and merging them into those of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transduce.models.adapters.places import Place
from transduce.nn.low_rank import adapted


@dataclass(frozen=True)
class LowRankWeights:
    """The adapter of one matrix: A [r, D], B [F, r], of DoRA also the length of each row."""

    A_RD: Tensor
    B_FR: Tensor
    scale: float
    magnitude_F: Tensor | None = None


@dataclass(frozen=True)
class AdapterState:
    """All of an adapter: low-rank matrices by place, and parameters trained as a whole."""

    low_rank: dict[str, LowRankWeights]
    whole: dict[str, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def merged(
        self, weights: Mapping[str, Tensor], places: Mapping[str, Place]
    ) -> dict[str, Tensor]:
        """The weights that the adapter changes, merged with it: new tensors, in float32."""
        found = {
            name: value.to(weights[name].device, weights[name].dtype)
            for name, value in self.whole.items()
        }
        touched = {places[name].parameter for name in self.low_rank}
        found |= {name: found.get(name, weights[name]).clone() for name in sorted(touched)}
        for name, one in self.low_rank.items():
            matrix_FD = places[name].of(found)
            parts = [
                None if part is None else part.to(matrix_FD.device, matrix_FD.dtype)
                for part in (one.A_RD, one.B_FR, one.magnitude_F)
            ]
            A_RD, B_FR, magnitude_F = parts
            assert A_RD is not None
            assert B_FR is not None
            matrix_FD.copy_(adapted(matrix_FD, A_RD, B_FR, one.scale, magnitude_F))
        return found
