"""A network for use alone, its matrices in fewer bits."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

import torch
from torch import nn

from transduce.models.learner import Learner
from transduce.models.network import Head
from transduce.nn.blocks import FeedForward
from transduce.nn.multihead import MultiHeadAttention
from transduce.nn.quantized import QuantizedWeight

Learned = TypeVar("Learned", bound=Learner)


def quantized(network: Learned, kind: str) -> Learned:
    """A copy whose Transformer blocks and output layer multiply in bfloat16 or int8, on a CPU.

    What is not a matrix of theirs stays as it is: in bfloat16 all else is of that type too; beside
    int8, embeddings, norms, biases and sums are in float32.
    """
    copied = deepcopy(network).eval().requires_grad_(False)
    if kind == "bfloat16":
        copied = copied.to(torch.bfloat16)
    shared: dict[int, QuantizedWeight] = {}
    for module in copied.modules():
        if isinstance(module, MultiHeadAttention):
            _replace(module.in_projection, kind, shared)
            _replace(module.out_projection, kind, shared)
        elif isinstance(module, FeedForward):
            _replace(module.expand, kind, shared)
            _replace(module.contract, kind, shared)
        elif isinstance(module, Head):
            _replace(module, kind, shared)
    return copied


def _replace(module: nn.Module, kind: str, shared: dict[int, QuantizedWeight]) -> None:
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    del module.weight
    made = shared.setdefault(id(weight), QuantizedWeight(weight, kind))
    object.__setattr__(module, "weight", made)
