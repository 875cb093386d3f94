"""A packed copy of a network for inference on a CPU, in float32, bfloat16 or int8."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import nn

from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.encoder_decoder import Head
from transduce.models.hooks import copy_for_search
from transduce.models.trainable import TrainableNetwork
from transduce.nn.gated_convolution import ConvolutionalDecoderBlock, GatedConvolution
from transduce.nn.transformer import Block
from transduce.runtime.c_library import library
from transduce.runtime.fingerprint import Fingerprint
from transduce.runtime.packed_weight import PackedWeight

Learned = TypeVar("Learned", bound=TrainableNetwork)


def packed(network: Learned, kind: str) -> Learned:
    """A copy whose blocks and output layer multiply in float32, bfloat16 or int8.

    Supports Transformer and convolutional blocks. Everything else (embeddings, norms, biases) is
    shared with the network; with bfloat16 it is copied and cast to that type. Hooks and lens are
    shared.
    """
    if kind == "bfloat16":
        copied = copy_for_search(network).eval().requires_grad_(False).to(torch.bfloat16)
    else:
        copied = copy_for_search(network, network.parameters()).eval()
    for module in copied.modules():
        if isinstance(module, Block):
            _pack_block(module, kind)
        elif isinstance(module, Head):
            _pack(module, kind)
        elif isinstance(module, GatedConvolution):
            _pack(module.product, kind)
        elif isinstance(module, ConvolutionalEncoder | ConvolutionalDecoder):
            _pack(module.into, kind)
            _pack(module.out_of, kind)
        elif isinstance(module, ConvolutionalDecoderBlock) and module.cross_attention is not None:
            _pack(module.query_projection, kind)
            _pack(module.context_projection, kind)
    return copied


class PackedCopy(Generic[Learned]):
    """A packed network, with a fingerprint of the weights that it was packed from."""

    def __init__(self, network: Learned, kind: str) -> None:
        self.network = packed(network, kind)
        self.steps: Any = None
        """Its decoding steps, made when they are first needed."""
        self._fingerprint = Fingerprint(network)

    def fits(self, network: Learned) -> bool:
        """Whether it is still up to date with the network; reads all weights once."""
        return self._fingerprint.fits(network)


def _pack_block(block: Block, kind: str) -> None:
    for sublayer in block.sublayers:
        if sublayer.kind == "feed_forward":
            _pack(sublayer.feed_forward.expand, kind)
            _pack(sublayer.feed_forward.contract, kind)
            continue
        attention = sublayer.attention
        # One rounding error may be a whole level of int8: what is padded must not change any.
        attention.exact = kind == "int8" and library() is None
        # Queries come from the target, keys and values from the source: two products.
        inner = attention.inner
        apart = (slice(None, inner), slice(inner, None))
        _pack(attention.in_projection, kind, *(apart if sublayer.kind == "cross_attention" else ()))
        _pack(attention.out_projection, kind)


def _pack(module: nn.Module, kind: str, *slices: slice) -> None:
    """Pack now, not at first use: forked processes then share the packed weights."""
    assert isinstance(module.weight, torch.Tensor)
    assert isinstance(module.bias, torch.Tensor)
    made = PackedWeight(module.weight, module.bias, kind)
    for part in [made[rows] for rows in slices] or [made]:
        part.pack()
    del module.weight
    object.__setattr__(module, "weight", made)
