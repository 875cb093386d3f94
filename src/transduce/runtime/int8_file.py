"""Weights in a file of eight bits: of each matrix whole levels, and a scale for each row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from transduce.errors import ModelError
from transduce.runtime.packed_weight import levels_of

SCALE = ".scale"


def pack_levels(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every matrix as int8, its scales beside it; the few numbers of norms and biases as they are.

    The levels are those that a product in int8 is made with.
    """
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() == 2:
            packed[name], packed[name + SCALE] = levels_of(weight)
        else:
            packed[name] = weight
    return packed


def unpack_levels(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights that levels stand for; what has none is as it was. Raises ModelError."""
    weights = dict(packed)
    for name, levels_FD in packed.items():
        if levels_FD.dtype == torch.int8:
            scale_F = weights.pop(name + SCALE, None)
            if scale_F is None or scale_F.shape != levels_FD.shape[:1]:
                raise ModelError(
                    f"the weights are in eight bits, but there is no scale for each row of {name}: "
                    f"export the model again"
                )
            weights[name] = levels_FD * scale_F[:, None]
    return weights
