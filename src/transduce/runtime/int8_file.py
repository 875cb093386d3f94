"""int8 weight files (quantization): each matrix as int8 with a scale for each row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from transduce.errors import ModelError
from transduce.runtime.packed_weight import quantize_weight

SCALE = ".scale"


def quantize_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Quantize every matrix to int8 with its scales beside it; norms and biases stay as they are.

    The quantized values are those that int8 inference uses.
    """
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() == 2:
            packed[name], packed[name + SCALE] = quantize_weight(weight)
        else:
            packed[name] = weight
    return packed


def dequantize_weights(packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Dequantize the weights; tensors without scales stay as they are. Raises ModelError."""
    weights = dict(packed)
    for name, levels_FD in packed.items():
        if levels_FD.dtype == torch.int8:
            scale_F = weights.pop(name + SCALE, None)
            if scale_F is None or scale_F.shape != levels_FD.shape[:1]:
                raise ModelError(
                    f"the weights are int8, but there is no scale for each row of {name}: "
                    f"export the model again"
                )
            weights[name] = levels_FD * scale_F[:, None]
    return weights
