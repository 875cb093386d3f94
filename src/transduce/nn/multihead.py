"""Attention with several heads: several weighted averages at once, each in its own subspace."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention import fused_attention, masked_softmax
from transduce.nn.cache import KeyValueCache
from transduce.nn.masks import Mask
from transduce.nn.positions import Rotary


class MultiHeadAttention(nn.Module):
    """[h_1, …, h_H] W^O with h_i = softmax(Q W_i^Q (K W_i^K)ᵀ / √K) V W_i^V.

    Vaswani et al. 2017, section 3.2, https://arxiv.org/abs/1706.03762. `in_projection.weight`
    [3D, D] holds W^Q, then W^K, then W^V, so that self-attention is one product.

    While `watch` is None, all heads run in one fused kernel and no weights exist; while it is set,
    the weights [B, H, T, S] are computed and `watch` is called with them.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(
                f"A width of {width} cannot be split evenly over {heads} heads: choose a number of "
                f"heads that divides the width."
            )
        if rotary is not None and rotary.width != width // heads:
            raise ValueError(
                f"Rotary positions of width {rotary.width} do not fit heads of width "
                f"{width // heads}: build them with Rotary({width // heads})."
            )
        self.width = width
        self.heads = heads
        self.dropout = dropout
        self.rotary = rotary
        self.in_projection = nn.Linear(width, 3 * width, bias=bias)
        self.out_projection = nn.Linear(width, width, bias=bias)
        self.watch: Callable[[Tensor], None] | None = None
        self._initialise()

    def forward(
        self,
        query_BTD: Tensor,
        keys_BSD: Tensor | None = None,
        values_BSD: Tensor | None = None,
        mask: Mask | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Queries [B, T, D] to outputs [B, T, D].

        Without keys it is self-attention; without values the keys are the values. With a cache, the
        T steps are added to it and attend to all that it holds.
        """
        if keys_BSD is None:
            query_BHTK, keys_BHSK, values_BHSK = self._project_self(query_BTD, cache)
        else:
            query_BHTK = self._project_query(query_BTD)
            keys_BHSK, values_BHSK = self.project(keys_BSD, values_BSD)
        if cache is not None:
            keys_BHSK, values_BHSK = cache.append(keys_BHSK, values_BHSK)
        return self._attend(query_BHTK, keys_BHSK, values_BHSK, mask)

    def project(self, keys_BSD: Tensor, values_BSD: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values for all heads, each [B, H, S, K]: the memory of `attend`, made once."""
        if self.rotary is not None:
            raise ValueError(
                "Rotary positions compare places in one sequence, so attention between two cannot "
                "use them: build this attention with rotary=None, or call it without keys."
            )
        weight_3DD, bias_3D = self.in_projection.weight, self.in_projection.bias
        D = self.width
        if values_BSD is None:
            bias_2D = None if bias_3D is None else bias_3D[D:]
            projected_BS2D = F.linear(keys_BSD, weight_3DD[D:], bias_2D)
            keys_BSD, values_BSD = projected_BS2D.chunk(2, dim=-1)
        else:
            key_bias_D, value_bias_D = (None, None) if bias_3D is None else bias_3D[D:].chunk(2)
            keys_BSD = F.linear(keys_BSD, weight_3DD[D : 2 * D], key_bias_D)
            values_BSD = F.linear(values_BSD, weight_3DD[2 * D :], value_bias_D)
        return self._split_heads(keys_BSD), self._split_heads(values_BSD)

    def attend(
        self,
        query_BTD: Tensor,
        keys_BHSK: Tensor,
        values_BHSK: Tensor,
        mask: Mask | None = None,
    ) -> Tensor:
        """Queries [B, T, D] to outputs [B, T, D] over memory that `project` has projected."""
        return self._attend(self._project_query(query_BTD), keys_BHSK, values_BHSK, mask)

    def _project_self(
        self, x_BTD: Tensor, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        query_BTD, keys_BTD, values_BTD = self.in_projection(x_BTD).chunk(3, dim=-1)
        query_BHTK = self._split_heads(query_BTD)
        keys_BHTK = self._split_heads(keys_BTD)
        values_BHTK = self._split_heads(values_BTD)
        if self.rotary is not None:
            start = 0 if cache is None else cache.length
            query_BHTK = self.rotary.rotate(query_BHTK, start)
            keys_BHTK = self.rotary.rotate(keys_BHTK, start)
        return query_BHTK, keys_BHTK, values_BHTK

    def _project_query(self, query_BTD: Tensor) -> Tensor:
        bias = self.in_projection.bias
        bias_D = None if bias is None else bias[: self.width]
        return self._split_heads(
            F.linear(query_BTD, self.in_projection.weight[: self.width], bias_D)
        )

    def _attend(
        self, query_BHTK: Tensor, keys_BHSK: Tensor, values_BHSK: Tensor, mask: Mask | None
    ) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if self.watch is None:
            context_BHTK = fused_attention(query_BHTK, keys_BHSK, values_BHSK, mask, dropout)
        else:
            weights_BHTS = self._weights(query_BHTK, keys_BHSK, mask)
            self.watch(weights_BHTS)
            context_BHTK = F.dropout(weights_BHTS, dropout) @ values_BHSK
        context_BTD = context_BHTK.transpose(1, 2).flatten(2)
        output_BTD: Tensor = self.out_projection(context_BTD)
        return output_BTD

    def _weights(self, query_BHTK: Tensor, keys_BHSK: Tensor, mask: Mask | None) -> Tensor:
        T, S = query_BHTK.shape[2], keys_BHSK.shape[2]
        scores_BHTS = query_BHTK @ keys_BHSK.mT / math.sqrt(query_BHTK.shape[3])
        visible_BTS = None if mask is None else mask.dense(T, S, scores_BHTS.device)
        return masked_softmax(
            scores_BHTS, None if visible_BTS is None else visible_BTS.unsqueeze(1)
        )

    def _split_heads(self, x_BTD: Tensor) -> Tensor:
        x_BTHK = x_BTD.view(*x_BTD.shape[:2], self.heads, -1)
        return x_BTHK.transpose(1, 2)

    def _initialise(self) -> None:
        # As torch.nn.MultiheadAttention: Glorot over the fused [3D, D], zero biases.
        nn.init.xavier_uniform_(self.in_projection.weight)
        if self.in_projection.bias is not None:
            nn.init.zeros_(self.in_projection.bias)
            nn.init.zeros_(self.out_projection.bias)
