"""A network for use alone on a CPU, its matrices laid out for that, in fewer bits or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from transduce.models.copies import copy_for_search
from transduce.models.learner import Learner
from transduce.models.network import Head
from transduce.nn.blocks import DecoderBlock, EncoderBlock
from transduce.nn.packed import PackedWeight

Learned = TypeVar("Learned", bound=Learner)


def packed(network: Learned, kind: str) -> Learned:
    """A copy whose Transformer blocks and output layer multiply in float32, bfloat16 or int8.

    What is not a matrix of theirs stays as it is: in bfloat16 all else is of that type too; beside
    int8, embeddings, norms, biases and sums are in float32. With float32 they are the network's
    own. Hooks and lens are shared.
    """
    kept = list(network.parameters()) if kind == "float32" else []
    copied = copy_for_search(network, kept).eval()
    if kind != "float32":
        copied.requires_grad_(False)
    if kind == "bfloat16":
        copied = copied.to(torch.bfloat16)
    for module in copied.modules():
        if isinstance(module, EncoderBlock | DecoderBlock):
            _pack_block(module, kind)
        elif isinstance(module, Head):
            _pack(module, kind)
    return copied


def version(network: Learner, weights: Sequence[Tensor] | None = None) -> object:
    """The same as before as long as no weight has changed, so that what was copied still holds.

    Of a network in training it is never the same, as a fused optimizer does not count its changes.
    weights: all its parameters, where they are at hand; to gather them takes a while.
    """
    weights = list(network.parameters()) if weights is None else weights
    if network.training or any(weight.is_inference() for weight in weights):
        return object()
    return [(weight.data_ptr(), weight._version) for weight in weights]


def _pack_block(block: EncoderBlock | DecoderBlock, kind: str) -> None:
    _pack(block.self_attention.in_projection, kind)
    _pack(block.self_attention.out_projection, kind)
    if isinstance(block, DecoderBlock) and block.cross_attention is not None:
        width = block.cross_attention.width
        # Queries are of the target, keys and values of the source: two products.
        _pack(block.cross_attention.in_projection, kind, slice(None, width), slice(width, None))
        _pack(block.cross_attention.out_projection, kind)
    _pack(block.feed_forward.expand, kind)
    _pack(block.feed_forward.contract, kind)


def _pack(module: nn.Module, kind: str, *slices: slice) -> None:
    """Now, not when it is first used: processes that are forked from this one then share it."""
    assert isinstance(module.weight, torch.Tensor)
    assert isinstance(module.bias, torch.Tensor)
    made = PackedWeight(module.weight, module.bias, kind)
    for part in [made[rows] for rows in slices] or [made]:
        part.pack()
    del module.weight
    object.__setattr__(module, "weight", made)
