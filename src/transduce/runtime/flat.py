"""Flat decoding step of a Transformer on a CPU: as few torch calls as possible.

With a few rows, a torch call costs more than its arithmetic. So modules and options are looked up
once, when the steps are built; the KV cache of all layers is one tensor, written in place; and ReLU
and residual sum are fused with the product before them. Results are the same as network.step's.

L stands for layers, C for the two that attention reads, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.decoders import DecoderState, TransformerDecoder, shared_rows
from transduce.models.encoder_decoder import EncoderDecoder
from transduce.models.hooks import is_watched
from transduce.models.memory import Memory
from transduce.models.trainable import TrainableNetwork, modules_of
from transduce.nn.activation import ACTIVATIONS
from transduce.nn.transformer import DecoderBlock, Residual, Sublayer
from transduce.runtime.packed_weight import Multiply, PackedWeight

ROOM = 32  # initial capacity of the KV cache in steps; it grows by doubling


def has_flat_steps(network: TrainableNetwork) -> bool:
    """Whether flat steps support this network: a Transformer decoder with a source, on a CPU, built
    from the recipe's own modules, as these are not called here.
    """
    on_cpu = next(network.parameters()).device.type == "cpu"
    transformer = isinstance(network, EncoderDecoder) and isinstance(
        network.decoder, TransformerDecoder
    )
    if not (on_cpu and transformer and network.as_built):
        return False
    # All layers keep their keys and values in one tensor.
    blocks = [m for m in network.modules() if isinstance(m, DecoderBlock)]
    return not any(is_pruned(m) or m.self_attention.relative is not None for m in blocks)


def is_pruned(block: DecoderBlock) -> bool:
    """Whether a block has lost attention heads."""
    attentions = (block.self_attention, block.cross_attention)
    return any(one is not None and one.inner != one.width for one in attentions)


class FlatSteps:
    """Flat decoding steps, used by search in place of the network.

    With a lens, forward hooks or a context that asks for attention, the network itself is used.
    Best with a packed network.
    """

    def __init__(self, network: EncoderDecoder) -> None:
        assert isinstance(network.decoder, TransformerDecoder)
        self.network, self.decoder = network, network.decoder
        self.layers = [flat_layer(block) for block in self.decoder.stack]
        self.norm = _norm(self.decoder.norm)
        self._modules = modules_of(network)

    def start(
        self, source_BS: Tensor, lengths_B: Tensor, context: CallContext = NO_CONTEXT
    ) -> DecoderState:
        return self.begin(self.network.encode(source_BS, lengths_B, context), context)

    def begin(self, memory: Memory, context: CallContext = NO_CONTEXT) -> DecoderState:
        """The decoder state before the first step, given encoder outputs."""
        if context.attention or is_watched(self._modules):
            return self.network.begin(memory, context)
        B, S, D = memory.states_BSD.shape
        L, H = len(self.layers), self.decoder.stack[0].self_attention.heads
        dtype = memory.states_BSD.dtype
        memory_LCBHSK = torch.empty(L, 2, B, H, S, D // H, dtype=dtype)
        for block, layer_CBHSK in zip(self.decoder.stack, memory_LCBHSK, strict=True):
            projected_BSCHK = block.project_memory(memory.states_BSD).view(B, S, 2, H, -1)
            layer_CBHSK.copy_(projected_BSCHK.permute(2, 0, 3, 1, 4))
        visible_B1S = None if memory.mask is None else memory.mask.dense(1, S)
        hidden_B11S = None
        if visible_B1S is not None:
            hidden_B11S = torch.zeros(B, 1, 1, S, dtype=dtype)
            hidden_B11S.masked_fill_(~visible_B1S[:, None], -torch.inf)
        return FlatState(memory_LCBHSK, hidden_B11S)

    def step(self, tokens_R: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_RV of the token after tokens_R, in float32 whatever the weights."""
        if not isinstance(state, FlatState):
            return self.network.step(tokens_R, state)
        past_XRHTK, t = state.with_room(len(tokens_R)).flatten(0, 1), state.length
        slots_RH1K = past_XRHTK[..., t : t + 1, :].unbind()
        pasts_RHTK = past_XRHTK[..., : t + 1, :].unbind()
        sources_BHSK = state.memory_LCBHSK.flatten(0, 1).unbind()
        x_RD = self.decoder.embedding(tokens_R[:, None], start=t).squeeze(1)
        for number, layer in enumerate(self.layers):
            pair = slice(2 * number, 2 * number + 2)
            for part in layer:
                if isinstance(part, SelfAttention):
                    x_RD = part(x_RD, t, slots_RH1K[pair], pasts_RHTK[pair])
                elif isinstance(part, CrossAttention):
                    x_RD = part(x_RD, sources_BHSK[pair], state.hidden_B11S)
                else:
                    x_RD = part(x_RD)
        state.length += 1
        logits_RV = self.network.head(self.norm(x_RD))
        return torch.log_softmax(logits_RV.float(), dim=-1), state


class FlatState:
    """The KV cache of each row and the source it reads, all layers in one tensor."""

    def __init__(self, memory_LCBHSK: Tensor, hidden_B11S: Tensor | None) -> None:
        """hidden_B11S: an additive mask, zero at the tokens of a source, -inf in padding."""
        self.memory_LCBHSK, self.hidden_B11S = memory_LCBHSK, hidden_B11S
        self.each = 1  # consecutive rows (a beam) that share one row of the memory
        self.length = 0
        self._past_LCRHTK = memory_LCBHSK[..., :0, :]

    def with_room(self, rows: int) -> Tensor:
        """The KV cache, with room for one more step."""
        L, C, _, H, T, K = self._past_LCRHTK.shape
        if self.length == T:
            grown_LCRHTK = self._past_LCRHTK.new_empty(L, C, rows, H, max(2 * T, ROOM), K)
            if T:
                grown_LCRHTK[..., :T, :] = self._past_LCRHTK
            self._past_LCRHTK = grown_LCRHTK
        return self._past_LCRHTK

    def reorder(self, index_R: Tensor) -> None:
        if self.length:
            self._past_LCRHTK = take_rows(self._past_LCRHTK, 2, index_R)
        sources = self.memory_LCBHSK.shape[2]
        source_B, self.each = shared_rows(index_R // self.each, self.each, sources)
        if source_B is not None:
            self.memory_LCBHSK = take_rows(self.memory_LCBHSK, 2, source_B)
            if self.hidden_B11S is not None:
                self.hidden_B11S = take_rows(self.hidden_B11S, 0, source_B)


def take_rows(store: Tensor, dim: int, index_R: Tensor) -> Tensor:
    """Rows of a tensor at an index; if most stay where they are, only the others are copied."""
    rows = len(index_R)
    if rows <= store.shape[dim]:
        moved_M = (index_R != torch.arange(rows)).nonzero().squeeze(1)
        if 2 * len(moved_M) < rows:
            taken = store.index_select(dim, index_R[moved_M])
            return store.narrow(dim, 0, rows).index_copy_(dim, moved_M, taken)
    return store.index_select(dim, index_R)


# ----------------------------------------------------------------------------------- one layer


Pair = tuple[Tensor, ...]  # keys and values


class FlatSublayer:
    """The first product of a sublayer, and the last one with the residual sum and the norm."""

    def __init__(
        self, residual: Residual, into: nn.Linear, out_of: nn.Linear, rows: int | None = None
    ) -> None:
        """rows: use only so many rows of the first product's weight."""
        self.pre = residual.norm_position == "pre"
        self.norm = _norm(residual.norm)
        self.into, self.out_of = _product(into, rows), _product(out_of)

    def enter(self, x_RD: Tensor, relu: bool = False) -> Tensor:
        return self.into(self.norm(x_RD) if self.pre else x_RD, relu, None)

    def leave(self, y_RF: Tensor, x_RD: Tensor) -> Tensor:
        summed_RD = self.out_of(y_RF, False, x_RD)
        return summed_RD if self.pre else self.norm(summed_RD)


class SelfAttention(FlatSublayer):
    def __init__(self, sublayer: Sublayer) -> None:
        attention = sublayer.attention
        super().__init__(sublayer.residual, attention.in_projection, attention.out_projection)
        self.heads, self.rotary, self.exact = attention.heads, attention.rotary, attention.exact

    def __call__(self, x_RD: Tensor, t: int, slots_RH1K: Pair, past_RHTK: Pair) -> Tensor:
        """Step t. Its keys and values are written into the slots, the last positions of the
        cache.
        """
        R, H = x_RD.shape[0], self.heads
        projected_R3H1K = self.enter(x_RD).view(R, 3, H, 1, -1)
        if self.rotary is not None:
            turning_RH1K = projected_R3H1K[:, :2].flatten(1, 2)
            projected_R3H1K[:, :2] = self.rotary.rotate(turning_RH1K, t).view(R, 2, H, 1, -1)
        query_RH1K, key_RH1K, value_RH1K = projected_R3H1K.unbind(1)
        slots_RH1K[0].copy_(key_RH1K)
        slots_RH1K[1].copy_(value_RH1K)
        keys_RHTK, values_RHTK = past_RHTK
        context_RH1K = _attention(self.exact, query_RH1K, keys_RHTK, values_RHTK)
        return self.leave(context_RH1K.reshape(R, -1), x_RD)


class CrossAttention(FlatSublayer):
    def __init__(self, sublayer: Sublayer) -> None:
        attention, inner = sublayer.attention, sublayer.attention.inner
        super().__init__(
            sublayer.residual, attention.in_projection, attention.out_projection, inner
        )
        self.heads, self.exact = attention.heads, attention.exact

    def __call__(self, x_RD: Tensor, source_BHSK: Pair, hidden_B11S: Tensor | None) -> Tensor:
        """Cross-attention; rows that share a source are its queries: it is read once for all of
        them.
        """
        R, B, H = x_RD.shape[0], source_BHSK[0].shape[0], self.heads
        query_BHNK = self.enter(x_RD).view(B, R // B, H, -1).transpose(1, 2)
        keys_BHSK, values_BHSK = source_BHSK
        context_BHNK = _attention(self.exact, query_BHNK, keys_BHSK, values_BHSK, hidden_B11S)
        return self.leave(context_BHNK.transpose(1, 2).reshape(R, -1), x_RD)


def _attention(
    exact: bool, query: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None = None
) -> Tensor:
    """Scaled dot-product attention; exact: in float64, as in MultiHeadAttention."""
    if not exact:
        return F.scaled_dot_product_attention(query, keys, values, hidden)
    hidden = None if hidden is None else hidden.double()
    inputs = (query.double(), keys.double(), values.double())
    return F.scaled_dot_product_attention(*inputs, hidden).to(query.dtype)


class FeedForward(FlatSublayer):
    def __init__(self, sublayer: Sublayer) -> None:
        feed_forward = sublayer.feed_forward
        super().__init__(sublayer.residual, feed_forward.expand, feed_forward.contract)
        self.relu = feed_forward.activation == "relu"
        self.activation = ACTIVATIONS[feed_forward.activation]

    def __call__(self, x_RD: Tensor) -> Tensor:
        hidden_RF = self.enter(x_RD, self.relu)
        if not self.relu:
            hidden_RF = self.activation(hidden_RF)
        return self.leave(hidden_RF, x_RD)


FlatLayer = list[SelfAttention | CrossAttention | FeedForward]
FLAT: dict[str, Callable[[Sublayer], SelfAttention | CrossAttention | FeedForward]] = {
    "self_attention": SelfAttention,
    "cross_attention": CrossAttention,
    "feed_forward": FeedForward,
}


def flat_layer(block: DecoderBlock) -> FlatLayer:
    """A decoder block as flat sublayers for single steps."""
    return [FLAT[sublayer.kind](sublayer) for sublayer in block.sublayers]


def _product(layer: nn.Linear, rows: int | None = None) -> Multiply:
    """x Wᵀ + b of a linear layer, or of its first rows."""
    weight: Tensor | PackedWeight = layer.weight
    if not isinstance(weight, PackedWeight):
        weight = PackedWeight(weight, layer.bias, "float32")
    return (weight if rows is None else weight[:rows]).pack()


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """torch's function for a norm, without the module's overhead."""
    if isinstance(norm, nn.LayerNorm):
        return partial(
            torch.layer_norm,
            normalized_shape=norm.normalized_shape,
            weight=norm.weight,
            bias=norm.bias,
            eps=norm.eps,
        )
    return norm
