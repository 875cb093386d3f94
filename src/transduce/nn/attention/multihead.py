"""Multi-head attention: several attention heads, each in its own subspace, side by side."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention.attention import fused_attention, masked_softmax
from transduce.nn.attention.bucketed import BucketedBias
from transduce.nn.attention.kv_cache import KVCache
from transduce.nn.attention.short import HEAD_WIDTHS, LONGEST, fits, short_attention
from transduce.nn.attention.static_kv_cache import (
    StaticCrossAttentionCache,
    StaticSelfAttentionCache,
)
from transduce.nn.linear import linear
from transduce.nn.masks import Mask
from transduce.nn.positions import ExplicitPositions, Rotary
from transduce.nn.watchable import Watch, Watchable


def packs(head_width: int, longest: int, dropout: float) -> bool:
    """Whether attention over packed sequences (several in one row) needs no dense mask."""
    by_ours = longest <= LONGEST and head_width in HEAD_WIDTHS
    by_torch = head_width % 8 == 0 and dropout == 0.0
    return by_ours or by_torch


class MultiHeadAttention(Watchable):
    """Multi-head attention (Vaswani et al. 2017, section 3.2, https://arxiv.org/abs/1706.03762).

        h_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √K) V W_i^V
        output = [h_1, …, h_H] W^O

    Without keys it is self-attention, otherwise cross-attention:

        attention = MultiHeadAttention(64, heads=4)
        y_BTD = attention(x_BTD, mask=causal())
        y_BTD = attention(x_BTD, memory_BSD, mask=padding(lengths_B, S))

    `in_projection.weight` [3D, D] holds W^Q, then W^K, then W^V, so that self-attention is one
    matrix product. While `watch` is None, all heads run in one fused kernel and the attention
    weights are never stored; while it is set to a function, the weights [B, H, T, S] are computed
    and the function is called with them. `gate` may scale heads, positions and the output.

    Args:
        width: width of inputs and outputs.
        heads: number of heads; must divide the width unless head_width is given.
        dropout: of the attention weights, in training.
        bias: whether the four projections have biases.
        rotary: rotary positions of the width of one head, applied to queries and keys.
        head_width: width of one head, if it is not width / heads.
        relative: a bias of the scores by distance, for self-attention (as in T5).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        rotary: Rotary | None = None,
        head_width: int | None = None,
        relative: BucketedBias | None = None,
    ) -> None:
        super().__init__()
        if heads < 1 or (head_width is None and width % heads):
            raise ValueError(
                f"A width of {width} cannot be divided among {heads} heads: choose a number of "
                f"heads that divides the width."
            )
        head_width = width // heads if head_width is None else head_width
        if rotary is not None and rotary.width != head_width:
            raise ValueError(
                f"Rotary positions of width {rotary.width} do not fit heads of width "
                f"{head_width}: build them with Rotary({head_width})."
            )
        self.width = width
        self.heads = heads
        self.head_width = head_width
        self.inner = heads * head_width
        """Of all heads together: the width of queries, of keys and of values."""
        self.dropout = dropout
        self.rotary = rotary
        self.relative = relative
        self.exact = False
        """Whether attention is computed in float64, whose rounding no float32 result shows."""
        self.in_projection = nn.Linear(width, 3 * self.inner, bias=bias)
        self.out_projection = nn.Linear(self.inner, width, bias=bias)
        self._initialise()

    def forward(
        self,
        query_BTD: Tensor,
        keys_BSD: Tensor | None = None,
        values_BSD: Tensor | None = None,
        mask: Mask | None = None,
        cache: KVCache | None = None,
        memory_BS2D: Tensor | None = None,
        watch: Watch = None,
    ) -> Tensor:
        """Queries [B, T, D] to outputs [B, T, D].

        Without keys this is self-attention; without values the keys are the values. With a KV
        cache, self-attention appends the T steps to it and attends to all it holds. With a memory,
        from `project`, this is `attend`. watch: is called with the weights of this call alone.
        """
        if memory_BS2D is not None:
            return self.attend(query_BTD, memory_BS2D, mask, watch)
        if keys_BSD is not None:
            return self.attend(query_BTD, self.project(keys_BSD, values_BSD), mask, watch)
        weight_3DD, bias_3D = self.in_projection.weight, self.in_projection.bias
        projected_BT3D = linear(query_BTD, weight_3DD, bias_3D)
        if self.rotary is not None:
            start: int | ExplicitPositions = 0 if cache is None else cache.length
            if mask is not None and mask.segments is not None:
                start = mask.segments.positions(query_BTD.shape[1])
            projected_BT3D = self._rotate(projected_BT3D, self.rotary, start)
        return self._context(projected_BT3D, None, mask, cache, watch)

    def project(self, keys_BSD: Tensor, values_BSD: Tensor | None = None) -> Tensor:
        """Projected keys and values, side by side [B, S, 2D]: the memory that `attend` takes."""
        if self.rotary is not None:
            raise ValueError(
                "Rotary positions compare positions in one sequence, so cross-attention cannot "
                "use them: build this attention with rotary=None, or call it without keys."
            )
        weight_3DD, bias_3D = self.in_projection.weight, self.in_projection.bias
        D = self.inner
        if values_BSD is None:
            bias_2D = None if bias_3D is None else bias_3D[D:]
            return linear(keys_BSD, weight_3DD[D:], bias_2D)
        key_bias_D, value_bias_D = (None, None) if bias_3D is None else bias_3D[D:].chunk(2)
        keys_BSD = linear(keys_BSD, weight_3DD[D : 2 * D], key_bias_D)
        values_BSD = linear(values_BSD, weight_3DD[2 * D :], value_bias_D)
        return torch.cat((keys_BSD, values_BSD), dim=-1)

    def attend(
        self,
        query_BTD: Tensor,
        memory_BS2D: Tensor,
        mask: Mask | None = None,
        watch: Watch = None,
    ) -> Tensor:
        """Cross-attention: queries [B, T, D] to outputs [B, T, D] over a memory from `project`.

        In single steps, several consecutive rows (a beam) may share one row of the memory: they are
        treated as queries of that row, and the memory is read once for all of them.
        """
        rows, sources = query_BTD.shape[0], memory_BS2D.shape[0]
        if rows != sources and watch is None and self.watch is None:
            together_BND = query_BTD.view(sources, -1, self.width)
            return self.attend(together_BND, memory_BS2D, mask).view(rows, -1, self.width)
        if rows != sources:  # a watcher gets the weights of each row
            memory_BS2D = memory_BS2D.repeat_interleave(rows // sources, dim=0)
            mask = None if mask is None else mask.repeat(rows // sources)
        bias = self.in_projection.bias
        bias_D = None if bias is None else bias[: self.inner]
        query_BTD = linear(query_BTD, self.in_projection.weight[: self.inner], bias_D)
        return self._context(query_BTD, memory_BS2D, mask, watch=watch)

    def resume(
        self, x_BTD: Tensor, past_BP2D: Tensor, visible_BTS: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Self-attention of the T positions that follow P others: outputs [B, T, D], and the keys
        and values [B, P + T, 2D] to give with the next positions, of which any may be dropped.

        Kept keys have no positions yet: rotary ones are counted from the first that is kept, so
        that only distances matter, however long the sequence.
        """
        projected_BT3D = linear(x_BTD, self.in_projection.weight, self.in_projection.bias)
        memory_BS2D = torch.cat((past_BP2D, projected_BT3D[..., self.inner :]), dim=1)
        context_BTD = self._resumed(projected_BT3D[..., : self.inner], memory_BS2D, visible_BTS)
        return context_BTD, memory_BS2D

    def _resumed(self, query_BTD: Tensor, memory_BS2D: Tensor, visible_BTS: Tensor) -> Tensor:
        query_BTHK = query_BTD.view(*query_BTD.shape[:2], self.heads, -1)
        memory_BS2HK = memory_BS2D.view(*memory_BS2D.shape[:2], 2, self.heads, -1)
        keys_BSHK, values_BSHK = memory_BS2HK.unbind(2)
        if self.rotary is not None:
            past = memory_BS2D.shape[1] - query_BTD.shape[1]
            query_BTHK = self.rotary.rotate_once(query_BTHK, past)
            keys_BSHK = self.rotary.rotate_once(keys_BSHK)
        return self._attended(
            query_BTHK.transpose(1, 2),
            keys_BSHK.transpose(1, 2),
            values_BSHK.transpose(1, 2),
            Mask(visible_BTS=visible_BTS),
            0.0,
        )

    def step(
        self, x_R1D: Tensor, cache: StaticSelfAttentionCache | StaticCrossAttentionCache
    ) -> Tensor:
        """One decoding step [R, 1, D] with a KV cache: its own past, or a projected source."""
        if self.relative is not None:
            raise ValueError("Steps over slots know no bias by distance: use forward with a cache.")
        weight_3DD, bias_3D = self.in_projection.weight, self.in_projection.bias
        rows = 3 * self.inner if isinstance(cache, StaticSelfAttentionCache) else self.inner
        bias = None if bias_3D is None else bias_3D[:rows]
        projected_R1E = linear(x_R1D, weight_3DD[:rows], bias)
        if self.rotary is not None and isinstance(cache, StaticSelfAttentionCache):
            positions = ExplicitPositions(cache.lengths_R[:, None], cache.store_RTE.shape[1])
            projected_R1E = self._rotate(projected_R1E, self.rotary, positions)
        context_R1D = cache.attend(projected_R1E, self.heads)
        if (gate := self.gate) is None:
            return linear(context_R1D, self.out_projection.weight, self.out_projection.bias)
        if gate.positions:
            raise ValueError("Steps over slots take gates on heads and outputs, not on positions.")
        return self._joined(self._split_heads(context_R1D))

    def _context(
        self,
        query_BTE: Tensor,
        memory_BS2D: Tensor | None,
        mask: Mask | None,
        cache: KVCache | None = None,
        watch: Watch = None,
    ) -> Tensor:
        """Context over the memory; without a memory the query is [B, T, 3D]: queries, keys and
        values.
        """
        query_BTD, own_memory = query_BTE[..., : self.inner], query_BTE[..., self.inner :]
        keys_and_values = own_memory if memory_BS2D is None else memory_BS2D
        dropout = self.dropout if self.training else 0.0
        length = keys_and_values.shape[1]
        plain = watch is None and self.watch is None and self.gate is None and cache is None
        plain = plain and self.relative is None
        if plain and fits(query_BTD, length, self.heads, mask):
            context_BTD = short_attention(query_BTE, memory_BS2D, self.heads, mask, dropout)
            return linear(context_BTD, self.out_projection.weight, self.out_projection.bias)
        query_BHTK = self._split_heads(query_BTD)
        keys_BHSK, values_BHSK = map(self._split_heads, keys_and_values.chunk(2, dim=-1))
        if cache is not None:
            keys_BHSK, values_BHSK = cache.append(keys_BHSK, values_BHSK)
        return self._attended(query_BHTK, keys_BHSK, values_BHSK, mask, dropout, watch)

    def _attended(
        self,
        query_BHTK: Tensor,
        keys_BHSK: Tensor,
        values_BHSK: Tensor,
        mask: Mask | None,
        dropout: float,
        watch: Watch = None,
    ) -> Tensor:
        """The outputs of all heads, in one kernel unless the weights are asked for."""
        if (gate := self.gate) is not None:
            values_BHSK = gate.on_values(values_BHSK)
        if watch is None and self.watch is None and self.relative is None:
            inputs = (query_BHTK, keys_BHSK, values_BHSK)
            if self.exact:
                inputs = (query_BHTK.double(), keys_BHSK.double(), values_BHSK.double())
            context_BHTK = fused_attention(*inputs, mask, dropout).to(query_BHTK.dtype)
        else:
            weights_BHTS = self._weights(query_BHTK, keys_BHSK, mask)
            self.show(weights_BHTS, watch)
            context_BHTK = F.dropout(weights_BHTS, dropout) @ values_BHSK
        return self._joined(context_BHTK)

    def _joined(self, context_BHTK: Tensor) -> Tensor:
        """[h_1, …, h_H] W^O, through the gate where there is one."""
        gate = self.gate
        if gate is not None:
            context_BHTK = gate.on_heads(context_BHTK)
        context_BTD = context_BHTK.transpose(1, 2).flatten(2)
        output_BTD = linear(context_BTD, self.out_projection.weight, self.out_projection.bias)
        return output_BTD if gate is None else gate.on_output(output_BTD)

    def _rotate(
        self, projected_BT3D: Tensor, rotary: Rotary, start: int | ExplicitPositions
    ) -> Tensor:
        """Apply rotary positions to queries and keys."""
        query_BTD, keys_BTD, values_BTD = projected_BT3D.chunk(3, dim=-1)
        turned = [
            rotary.rotate(self._split_heads(x_BTD), start).transpose(1, 2).flatten(2)
            for x_BTD in (query_BTD, keys_BTD)
        ]
        return torch.cat((*turned, values_BTD), dim=-1)

    def _weights(self, query_BHTK: Tensor, keys_BHSK: Tensor, mask: Mask | None) -> Tensor:
        T, S = query_BHTK.shape[2], keys_BHSK.shape[2]
        scores_BHTS = query_BHTK @ keys_BHSK.mT / math.sqrt(query_BHTK.shape[3])
        if self.relative is not None:
            scores_BHTS = scores_BHTS + self.relative(T, S).to(scores_BHTS.dtype)
        visible_BTS = None if mask is None else mask.dense(T, S, scores_BHTS.device)
        return masked_softmax(
            scores_BHTS, None if visible_BTS is None else visible_BTS.unsqueeze(1)
        )

    def _split_heads(self, x_BTD: Tensor) -> Tensor:
        x_BTHK = x_BTD.view(*x_BTD.shape[:2], self.heads, -1)
        return x_BTHK.transpose(1, 2)

    def _initialise(self) -> None:
        # Initialised as torch.nn.MultiheadAttention: Glorot over the fused [3D, D], zero biases.
        nn.init.xavier_uniform_(self.in_projection.weight)
        if self.in_projection.bias is not None:
            nn.init.zeros_(self.in_projection.bias)
            nn.init.zeros_(self.out_projection.bias)
