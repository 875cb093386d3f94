"""A Transformer's decoding step on a CPU, in as few calls of torch as may be.

At a few rows a call costs more than its arithmetic. So modules and options are looked at once, when
the steps are made; the past lies in one store for all layers and is written in place; and what
follows a product, max(0, ·) or the residual sum, is done along with it. The numbers are those of
network.step.

L stands for layers, C for the two that attention reads, keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.models.decoders import DecoderState, TransformerDecoder, shared_rows
from transduce.models.learner import Learner
from transduce.models.lens import attentions
from transduce.models.memory import Memory
from transduce.models.network import Network
from transduce.nn.blocks import ACTIVATIONS, DecoderBlock, Residual
from transduce.nn.packed import PackedWeight

ROOM = 32  # steps that a store has room for at first; it grows by doubling


def has_flat_steps(network: Learner) -> bool:
    """Whether a network can be searched so: a Transformer's decoder, with a source, on a CPU."""
    on_cpu = next(network.parameters()).device.type == "cpu"
    return (
        on_cpu and isinstance(network, Network) and isinstance(network.decoder, TransformerDecoder)
    )


class FlatSteps:
    """Searched in place of a network; while an attention of it is watched, the network itself is.

    The network is best a packed one.
    """

    def __init__(self, network: Network) -> None:
        assert isinstance(network.decoder, TransformerDecoder)
        self.network, self.decoder = network, network.decoder
        self.layers = [Layer(block) for block in self.decoder.stack]
        self.norm = _norm(self.decoder.norm)
        self.attentions = list(attentions(network).values())

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState:
        return self.begin(self.network.encode(source_BS, lengths_B))

    def begin(self, memory: Memory) -> DecoderState:
        """What steps start from that have this memory."""
        if any(attention.watch is not None for attention in self.attentions):
            return self.decoder.start(memory)
        B, S, D = memory.states_BSD.shape
        L, H = len(self.layers), self.layers[0].heads
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
        past_LCRHTK, t = state.with_room(len(tokens_R)), state.length
        slots_CRHK = past_LCRHTK[..., t, :].unbind()
        pasts_CRHTK = past_LCRHTK[..., : t + 1, :].unbind()
        memories_CBHSK = state.memory_LCBHSK.unbind()
        x_RD = self.decoder.embedding(tokens_R[:, None], start=t).squeeze(1)
        stores = zip(slots_CRHK, pasts_CRHTK, memories_CBHSK, strict=True)
        for layer, (slot_CRHK, past_CRHTK, memory_CBHSK) in zip(self.layers, stores, strict=True):
            x_RD = layer.step(x_RD, t, slot_CRHK, past_CRHTK, memory_CBHSK, state.hidden_B11S)
        state.length += 1
        logits_RV = self.network.head(self.norm(x_RD))
        return torch.log_softmax(logits_RV.float(), dim=-1), state


class FlatState:
    """The past of each row and the source it reads, of all layers in one place."""

    def __init__(self, memory_LCBHSK: Tensor, hidden_B11S: Tensor | None) -> None:
        """hidden_B11S: zero at the tokens of a source, -inf beyond them."""
        self.memory_LCBHSK, self.hidden_B11S = memory_LCBHSK, hidden_B11S
        self.each = 1  # rows in a row that share one row of the memory
        self.length = 0
        self._past_LCRHTK = memory_LCBHSK[..., :0, :]

    def with_room(self, rows: int) -> Tensor:
        """The store of the past, with room for one more step."""
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
    """Its rows at an index; if most stay where they are, the others are written among them."""
    rows = len(index_R)
    if rows <= store.shape[dim]:
        moved_M = (index_R != torch.arange(rows)).nonzero().squeeze(1)
        if 2 * len(moved_M) < rows:
            taken = store.index_select(dim, index_R[moved_M])
            return store.narrow(dim, 0, rows).index_copy_(dim, moved_M, taken)
    return store.index_select(dim, index_R)


# ----------------------------------------------------------------------------------- one layer


class Layer:
    """A decoder block, its parts laid out for single steps."""

    def __init__(self, block: DecoderBlock) -> None:
        own, cross, feed_forward = block.self_attention, block.cross_attention, block.feed_forward
        assert cross is not None
        D = own.width
        self.heads, self.rotary = own.heads, own.rotary
        self.own = Sublayer(
            block.self_attention_residual, Product(own.in_projection), Product(own.out_projection)
        )
        self.cross = Sublayer(
            block.cross_attention_residual,
            Product(cross.in_projection, rows=D),
            Product(cross.out_projection),
        )
        relu = feed_forward.activation == "relu"
        self.activation = None if relu else ACTIVATIONS[feed_forward.activation]
        self.feed_forward = Sublayer(
            block.feed_forward_residual,
            Product(feed_forward.expand, relu=relu),
            Product(feed_forward.contract),
        )

    def step(
        self,
        x_RD: Tensor,
        t: int,
        slot_CRHK: Tensor,
        past_CRHTK: Tensor,
        memory_CBHSK: Tensor,
        hidden_B11S: Tensor | None,
    ) -> Tensor:
        """Step t. Its keys and values are written into the slot, which is the past's last place."""
        projected_RE = self.own.enter(x_RD)
        context_RD = self._attend_to_self(projected_RE, t, slot_CRHK, past_CRHTK)
        x_RD = self.own.leave(context_RD, x_RD)

        query_RD = self.cross.enter(x_RD)
        context_RD = self._attend_to_source(query_RD, memory_CBHSK, hidden_B11S)
        x_RD = self.cross.leave(context_RD, x_RD)

        hidden_RF = self.feed_forward.enter(x_RD)
        if self.activation is not None:
            hidden_RF = self.activation(hidden_RF)
        return self.feed_forward.leave(hidden_RF, x_RD)

    def _attend_to_self(
        self, projected_RE: Tensor, t: int, slot_CRHK: Tensor, past_CRHTK: Tensor
    ) -> Tensor:
        _, R, H, K = slot_CRHK.shape
        projected_R3HK = projected_RE.view(R, 3, H, K).to(past_CRHTK.dtype)
        if self.rotary is not None:
            turning_RH1K = projected_R3HK[:, :2].flatten(1, 2).unsqueeze(2)
            projected_R3HK[:, :2] = self.rotary.rotate(turning_RH1K, t).view(R, 2, H, K)
        slot_CRHK.copy_(projected_R3HK[:, 1:].transpose(0, 1))
        keys_RHTK, values_RHTK = past_CRHTK
        query_RH1K = projected_R3HK[:, 0].unsqueeze(2)
        context_RH1K = F.scaled_dot_product_attention(query_RH1K, keys_RHTK, values_RHTK)
        return context_RH1K.view(R, H * K).to(projected_RE.dtype)

    def _attend_to_source(
        self, query_RD: Tensor, memory_CBHSK: Tensor, hidden_B11S: Tensor | None
    ) -> Tensor:
        """The rows of one source are its queries: its memory is read once for all of them."""
        B = memory_CBHSK.shape[1]
        query_BNHK = query_RD.view(B, -1, self.heads, memory_CBHSK.shape[-1])
        query_BHNK = query_BNHK.transpose(1, 2).to(memory_CBHSK.dtype)
        keys_BHSK, values_BHSK = memory_CBHSK
        context_BHNK = F.scaled_dot_product_attention(
            query_BHNK, keys_BHSK, values_BHSK, hidden_B11S
        )
        return context_BHNK.transpose(1, 2).reshape(query_RD.shape).to(query_RD.dtype)


class Product:
    """x Wᵀ + b of a linear layer, or of its first rows."""

    def __init__(self, layer: nn.Linear, rows: int | None = None, relu: bool = False) -> None:
        weight: Tensor | PackedWeight = layer.weight
        packed = weight if isinstance(weight, PackedWeight) else PackedWeight(weight, "float32")
        self.weight = packed if rows is None else packed[:rows]
        self.bias = layer.bias[:rows]
        self.relu = relu

    def __call__(self, x_RD: Tensor, added_RF: Tensor | None = None) -> Tensor:
        return self.weight.multiply(x_RD, self.bias, self.relu, added_RF)


class Sublayer:
    """What is between a residual's ends: into it, and out of it onto what went in."""

    def __init__(self, residual: Residual, into: Product, out_of: Product) -> None:
        self.pre = residual.norm_position == "pre"
        self.norm, self.into, self.out_of = _norm(residual.norm), into, out_of

    def enter(self, x_RD: Tensor) -> Tensor:
        return self.into(self.norm(x_RD) if self.pre else x_RD)

    def leave(self, y_RF: Tensor, x_RD: Tensor) -> Tensor:
        summed_RD = self.out_of(y_RF, x_RD)
        return summed_RD if self.pre else self.norm(summed_RD)


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """torch's function for a norm, without the module around it."""
    if isinstance(norm, nn.LayerNorm):
        return partial(
            torch.layer_norm,
            normalized_shape=norm.normalized_shape,
            weight=norm.weight,
            bias=norm.bias,
            eps=norm.eps,
        )
    return norm
