"""A network for use alone, its matrices in fewer bits."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from transduce.models.levels import round_to_levels
from transduce.models.network import Network
from transduce.nn.blocks import FeedForward
from transduce.nn.multihead import MultiHeadAttention
from transduce.nn.quantized import QuantizedWeight


def quantized(network: Network, kind: str) -> Network:
    """A copy whose Transformer blocks and output layer multiply in bfloat16 or int8, on a CPU.

    What is not a matrix of theirs stays as it is: in bfloat16 all else is of that type too; beside
    int8, norms, biases and sums are in float32, and embeddings too, of as many levels.
    """
    copied = deepcopy(network).eval().requires_grad_(False)
    if kind == "bfloat16":
        copied = copied.to(torch.bfloat16)
    else:
        round_to_levels(copied)
    shared: dict[int, QuantizedWeight] = {}
    for module in copied.modules():
        if isinstance(module, MultiHeadAttention):
            _replace(module.in_projection, kind, shared)
            _replace(module.out_projection, kind, shared)
        elif isinstance(module, FeedForward):
            _replace(module.expand, kind, shared)
            _replace(module.contract, kind, shared)
    _replace(copied.head, kind, shared)
    return copied


def _replace(module: nn.Module, kind: str, shared: dict[int, QuantizedWeight]) -> None:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    del module.weight
    made = shared.setdefault(id(weight), QuantizedWeight(weight, kind))
    object.__setattr__(module, "weight", made)
