"""A packed copy of a network for inference on a CPU, in float32, bfloat16 or int8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from transduce.memory import give_back
from transduce.models.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transduce.models.encoder_decoder import Head
from transduce.models.hooks import copy_for_search
from transduce.models.trainable import TrainableNetwork
from transduce.nn.gated_convolution import ConvolutionalDecoderBlock, GatedConvolution
from transduce.nn.recurrent.stack import Recurrent
from transduce.nn.transformer import Block
from transduce.runtime.c_library import library
from transduce.runtime.fingerprint import Fingerprint
from transduce.runtime.packed_weight import PackedWeight
from transduce.runtime.recurrent_stack import CompiledRecurrent, is_supported
from transduce.runtime.unloaded import WeightFile

Learned = TypeVar("Learned", bound=TrainableNetwork)

SMALL = 65_536
"""Weights of an output layer that multiplies in float32 in int8, too, above recurrent networks,
which do: this costs little, and a last bit that differs between browsers stays one."""


def packed(network: Learned, kind: str, file: Path | None = None) -> Learned:
    """A copy whose blocks and output layer multiply in float32, bfloat16 or int8.

    Supports Transformer and convolutional blocks. Everything else (embeddings, norms, biases) is
    shared with the network; with bfloat16 it is copied and cast to that type. Recurrent networks,
    and small output layers above them, multiply in float32 in int8 as well, and have copies of
    their weights. Hooks and lens are
    shared. file: that the weights were read from, of a network that no longer changes, which then
    has only those that it shares with the copy in memory, until others are used.
    """
    if kind == "bfloat16":
        copied = copy_for_search(network).eval().requires_grad_(False).to(torch.bfloat16)
    else:
        copied = copy_for_search(network, network.parameters()).eval()
    products = [one for module in copied.modules() for one in _products(module, kind)]
    of_head = kind if kind != "int8" or head_in_int8(network) else "float32"
    multiplying = {id(module) for module, _ in products}
    shared = {
        id(parameter)
        for module in copied.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if name != "weight" or id(module) not in multiplying
    }
    weights = None if file is None or library() is None else WeightFile(network, file)
    for module, slices in products:
        matrix = module.weight
        assert isinstance(matrix, torch.Tensor)
        made = _pack(module, of_head if isinstance(module, Head) else kind, *slices)
        if weights is not None and id(matrix) not in shared:
            made.refer_to(weights.take(matrix))  # at once: memory never holds all matrices twice
    native = None if kind == "bfloat16" else library()
    for module in copied.modules():
        if native and isinstance(module, Recurrent) and is_supported(module):
            module.compiled = CompiledRecurrent(native, module)
    if weights is not None and kind == "bfloat16":  # nothing is shared
        for parameter in list(network.parameters()):
            weights.take(parameter)
    return copied


def head_in_int8(network: nn.Module) -> bool:
    """Whether the output layer multiplies in int8 where the network is in int8."""
    modules = list(network.modules())
    if any(isinstance(one, Block | GatedConvolution) for one in modules):
        return True
    return any(isinstance(one, Head) and one.weight.numel() > SMALL for one in modules)


class PackedCopy(Generic[Learned]):
    """A packed network, with a fingerprint of the weights that it was packed from."""

    def __init__(self, network: Learned, kind: str, file: Path | None = None) -> None:
        """file: as in `packed`."""
        self._fingerprint = Fingerprint(network)
        self.network = packed(network, kind, file)
        self._fingerprint.follow(network)
        give_back()
        self.steps: Any = None
        """Its decoding steps, made when they are first needed."""

    def fits(self, network: Learned) -> bool:
        """Whether it is still up to date with the network; reads all weights once."""
        return self._fingerprint.fits(network)


def _products(module: nn.Module, kind: str) -> Iterator[tuple[nn.Module, tuple[slice, ...]]]:
    """What a module multiplies with: the owner of each weight, and the rows that are packed apart
    (none: all together)."""
    if isinstance(module, Block):
        yield from _products_of_block(module, kind)
    elif isinstance(module, Head):
        yield module, ()
    elif isinstance(module, GatedConvolution):
        yield module.product, ()
    elif isinstance(module, ConvolutionalEncoder | ConvolutionalDecoder):
        yield module.into, ()
        yield module.out_of, ()
    elif isinstance(module, ConvolutionalDecoderBlock) and module.cross_attention is not None:
        yield module.query_projection, ()
        yield module.context_projection, ()


def _products_of_block(block: Block, kind: str) -> Iterator[tuple[nn.Module, tuple[slice, ...]]]:
    for sublayer in block.sublayers:
        if sublayer.kind == "feed_forward":
            yield sublayer.feed_forward.expand, ()
            yield sublayer.feed_forward.contract, ()
            continue
        attention = sublayer.attention
        # One rounding error may be a whole level of int8: what is padded must not change any.
        attention.exact = kind == "int8" and library() is None
        # Queries come from the target, keys and values from the source: two products.
        inner = attention.inner
        apart = (slice(None, inner), slice(inner, None))
        yield attention.in_projection, apart if sublayer.kind == "cross_attention" else ()
        yield attention.out_projection, ()


def _pack(module: nn.Module, kind: str, *slices: slice) -> PackedWeight:
    """Pack now, not at first use: forked processes then share the packed weights."""
    assert isinstance(module.weight, torch.Tensor)
    assert isinstance(module.bias, torch.Tensor)
    made = PackedWeight(module.weight, module.bias, kind)
    for part in [made[rows] for rows in slices] or [made]:
        part.pack()
    del module.weight
    object.__setattr__(module, "weight", made)
    return made
