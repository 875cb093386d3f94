"""Matrices in eight bits: whole levels from -127 to 127, and a scale for each row.

A scale has 17 significant bits, a level 7: their product is a float32 without rounding. So weights
that were rounded to levels once are the same when they are rounded again, whether they came from a
file of levels or not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transduce.errors import ModelError
from transduce.models.embedding import TokenEmbedding
from transduce.models.network import Network
from transduce.nn.blocks import FeedForward
from transduce.nn.multihead import MultiHeadAttention

HIGHEST = 127
SCALE = ".scale"
_SMALLEST = 1e-12  # of a scale: a row of zeros has one too
_CUT = 0x7F  # of a float32's 23 bits after the point, those that a scale does without


def matrices(network: Network) -> list[nn.Parameter]:
    """What is kept in eight bits: embeddings, the output layer, and all of a Transformer's."""
    found: list[object] = [network.head.weight]
    for module in network.modules():
        if isinstance(module, TokenEmbedding):
            found.append(module.table.weight)
        elif isinstance(module, MultiHeadAttention):
            found += [module.in_projection.weight, module.out_projection.weight]
        elif isinstance(module, FeedForward):
            found += [module.expand.weight, module.contract.weight]
    once = {id(weight): weight for weight in found}  # a table may be tied to the output layer
    return [weight for weight in once.values() if isinstance(weight, nn.Parameter)]


def to_levels(weight_FD: Tensor) -> tuple[Tensor, Tensor]:
    """Levels_FD in int8 and scale_F in float32, the nearest to a weight."""
    weight_FD = weight_FD.detach().float()
    scale_F = (weight_FD.abs().amax(dim=1) / HIGHEST).clamp(min=_SMALLEST)
    # Upwards: no level is above the highest.
    scale_F = ((scale_F.view(torch.int32) + _CUT) & ~_CUT).view(torch.float32)
    levels_FD = (weight_FD / scale_F[:, None]).round().clamp(-HIGHEST, HIGHEST)
    return levels_FD.to(torch.int8), scale_F


def from_levels(levels_FD: Tensor, scale_F: Tensor) -> Tensor:
    return levels_FD.float() * scale_F[:, None]


@torch.no_grad()
def round_to_levels(network: Network) -> None:
    """Set a network's matrices to what eight bits can say."""
    for weight in matrices(network):
        weight.copy_(from_levels(*to_levels(weight)))


def pack_levels(network: Network) -> dict[str, Tensor]:
    """Weights as a file holds them: of a matrix the levels, and beside them its scales."""
    small = {id(weight) for weight in matrices(network)}
    packed: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        packed[name] = parameter.detach()
        if id(parameter) in small:
            packed[name], packed[name + SCALE] = to_levels(parameter)
    return packed


def unpack_levels(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """What was packed; weights without levels are as they were. Raises ModelError."""
    weights = dict(packed)
    for name, tensor in packed.items():
        if tensor.dtype == torch.int8:
            scale_F = weights.pop(name + SCALE, None)
            if scale_F is None or scale_F.shape != tensor.shape[:1]:
                raise ModelError(f"the weights have no scales for the rows of {name}")
            weights[name] = from_levels(tensor, scale_F)
    return weights
