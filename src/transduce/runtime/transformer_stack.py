"""A stack of Transformer layers as a structure of the C library; see c/stack.c."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from transduce.nn import transformer as blocks
from transduce.nn.activation import ACTIVATIONS
from transduce.nn.embedding.tokens import TaggedEmbedding, TokenEmbedding
from transduce.nn.positions import Learned, RegisteredPositions, Sinusoids
from transduce.runtime.packed_weight import PackedWeight
from transduce.runtime.product import Product
from transduce.runtime.structures import FUNCTIONS, KINDS, Kernel, Norm, Stack, Sublayer, Weight


class Rows:
    """Addresses of the rows of a table of positional encodings; None without a table."""

    def __init__(self, table: Sinusoids | Learned | RegisteredPositions | None) -> None:
        self._table = table
        # all tables so far: another thread may still read an older one
        self._kept = [torch.empty(0, 0)]

    def at(self, start: int, length: int = 1) -> int | None:
        """The address of the first of `length` rows; ValueError past the last."""
        if self._table is None:
            return None
        rows_TD, end = self._kept[-1], start + length
        if end > len(rows_TD):
            enough = self._table.max_length if isinstance(self._table, Learned) else 2 * end
            rows_TD = self._table(max(enough, end)).float()
            self._kept.append(rows_TD)
        return rows_TD.data_ptr() + 4 * start * rows_TD.shape[1]


class Compiled:
    """A stack of layers as a C structure, and the tensors that it points to."""

    def __init__(
        self,
        embedding: TokenEmbedding,
        stack: Sequence[blocks.Block],
        norm: nn.Module,
        kernel: Kernel,
    ) -> None:
        first = stack[0].sublayers[0].attention
        self.embedding, self.width = embedding, first.width
        self.heads = first.width // first.head_width
        positions = embedding.positions
        # Concatenated positions, those that do not count tags, and a norm of the embeddings are
        # left to torch.
        added = positions is None or positions.combine == "add"
        counted = not isinstance(embedding, TaggedEmbedding)
        self.embeds = added and counted and embedding.norm is None
        self.added = Rows(positions.positions if positions is not None and self.embeds else None)
        self.tokens = embedding.table.num_embeddings
        self.rotary = Rows(first.rotary)
        self._kept: list[object] = []
        sublayers = [
            self._sublayer(sublayer, number)
            for number, block in enumerate(stack)
            for sublayer in block.sublayers
        ]
        self._stack = Stack(
            (Sublayer * len(sublayers))(*sublayers),
            len(sublayers),
            len(stack),
            self.width,
            first.head_width,
            self._norm(norm),
            self._keep(embedding.table.weight) if self.embeds else None,
            self.tokens,
            embedding.scale,
            kernel,
        )
        self.address = ctypes.addressof(self._stack)

    def _sublayer(self, sublayer: blocks.Sublayer, layer: int) -> Sublayer:
        function, gated = FUNCTIONS[0], False
        if sublayer.kind == "feed_forward":
            activation = ACTIVATIONS[sublayer.feed_forward.activation]
            function, gated = activation.function, activation.gated
        into, out_of = weights_of_sublayer(sublayer)
        return Sublayer(
            KINDS.index(sublayer.kind),
            sublayer.residual.norm_position == "pre",
            FUNCTIONS.index(function),
            gated,
            layer,
            self._norm(sublayer.residual.norm),
            self._weight(into),
            self._weight(out_of),
        )

    def _weight(self, packed: object) -> Weight:
        product = product_of(packed)
        assert product is not None
        self._kept.append(product)
        return product.weight

    def _norm(self, norm: nn.Module) -> Norm:
        if isinstance(norm, nn.LayerNorm):
            return Norm(self._keep(norm.weight), self._keep(norm.bias), norm.eps)
        if isinstance(norm, nn.RMSNorm):
            return Norm(self._keep(norm.weight), None, norm.eps)
        return Norm()

    def _keep(self, tensor: Tensor) -> int:
        kept = tensor.detach().float().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()


def weights_of_sublayer(sublayer: blocks.Sublayer) -> tuple[object, object]:
    """The weights of a sublayer's input and output products, as a single step needs them."""
    if sublayer.kind == "feed_forward":
        return sublayer.feed_forward.expand.weight, sublayer.feed_forward.contract.weight
    attention = sublayer.attention
    into: object = attention.in_projection.weight
    # keys and values of the source are projected once, not in each step
    if sublayer.kind == "cross_attention":
        into = attention.in_projection.weight[: attention.inner]
    return into, attention.out_projection.weight


def is_packed(block: nn.Module) -> bool:
    """Whether all its products are packed for the C library, and it supports the activation."""
    if not isinstance(block, blocks.Block):
        return False
    attentions = [s.attention for s in block.sublayers if s.kind != "feed_forward"]
    if any(one.inner > one.width or one.relative is not None for one in attentions):
        return False  # its buffers are as wide as the model, and it is given no bias by distance
    return all(
        all(map(is_native, weights_of_sublayer(sublayer)))
        and (
            sublayer.kind != "feed_forward"
            or ACTIVATIONS[sublayer.feed_forward.activation].function in FUNCTIONS
        )
        for sublayer in block.sublayers
    )


def is_native(weight: object) -> bool:
    return product_of(weight) is not None


def product_of(weight: object) -> Product | None:
    """The C library's product of a packed weight."""
    if not isinstance(weight, PackedWeight):
        return None
    multiply = weight.pack()
    return multiply if isinstance(multiply, Product) else None
