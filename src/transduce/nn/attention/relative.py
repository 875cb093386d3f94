"""Relative positional self-attention, as in Transformer-XL: scores depend on the distance of two
frames.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.attention.attention import masked_softmax
from transduce.nn.attention.kv_cache import KVCache
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.linear import linear
from transduce.nn.masks import Mask
from transduce.nn.positions import Sinusoidal
from transduce.nn.watchable import Watch


class RelativeAttention(MultiHeadAttention):
    """Self-attention with relative positions (Dai et al. 2019, https://arxiv.org/abs/1901.02860).

        score(t, s) = ((q_t + u)ᵀ k_s + (q_t + v)ᵀ W^R r_{t−s}) / √K

    The first term is about content, the second about distance: r has a sinusoid for each distance,
    and u and v are learned for each head. The second term is one number for each pair of frames, so
    a fused kernel would need it as a bias of the full size, which saves nothing in training; with
    rotary positions fused kernels work.

    Args:
        width: width of inputs and outputs.
        heads: number of heads.
        waves: sinusoids of the same width, for r.
        dropout: of the attention weights, in training.
        bias: whether the projections have biases.
        head_width: width of one head, if it is not width / heads.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        sinusoids: Sinusoidal,
        dropout: float = 0.0,
        bias: bool = True,
        head_width: int | None = None,
    ) -> None:
        super().__init__(width, heads, dropout, bias, head_width=head_width)
        if sinusoids.width != width:
            raise ValueError(
                f"Positions of width {sinusoids.width} do not fit attention of width {width}."
            )
        self.sinusoids = sinusoids
        self.distance_projection = nn.Linear(width, self.inner, bias=False)
        self.content_bias_HK = nn.Parameter(torch.empty(heads, self.head_width))
        self.distance_bias_HK = nn.Parameter(torch.empty(heads, self.head_width))
        nn.init.xavier_uniform_(self.content_bias_HK)
        nn.init.xavier_uniform_(self.distance_bias_HK)

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
        """A whole sequence [B, T, D] to outputs [B, T, D]; ValueError for keys or a cache."""
        others = (keys_BSD, values_BSD, cache, memory_BS2D)
        if any(other is not None for other in others):
            raise ValueError(
                "Relative positions compare positions in one whole sequence: they take no keys of "
                "another and no cache."
            )
        projected_BT3D = linear(query_BTD, self.in_projection.weight, self.in_projection.bias)
        T = query_BTD.shape[1]
        visible_BTT = None if mask is None else mask.dense(T, T, query_BTD.device)
        own_BTD, memory_BT2D = projected_BT3D[..., : self.inner], projected_BT3D[..., self.inner :]
        return self._resumed(own_BTD, memory_BT2D, visible_BTT, watch)

    def _resumed(
        self,
        query_BTD: Tensor,
        memory_BS2D: Tensor,
        visible_BTS: Tensor | None,
        watch: Watch = None,
    ) -> Tensor:
        """The T queries are at the last T of the S positions of the keys."""
        query_BHTK = self._split_heads(query_BTD)
        keys_BHSK, values_BHSK = map(self._split_heads, memory_BS2D.chunk(2, dim=-1))
        S = keys_BHSK.shape[2]
        distances_RD = self.distances(S, query_BTD.shape[1]).to(query_BTD.dtype)
        distances_1HRK = self._split_heads(
            linear(distances_RD[None], self.distance_projection.weight, None)
        )
        content_BHTS = (query_BHTK + self.content_bias_HK[:, None]) @ keys_BHSK.mT
        distance_BHTR = (query_BHTK + self.distance_bias_HK[:, None]) @ distances_1HRK.mT
        scores_BHTS = (content_BHTS + by_key(distance_BHTR)) / math.sqrt(query_BHTK.shape[-1])
        visible_B1TS = None if visible_BTS is None else visible_BTS.unsqueeze(1)
        weights_BHTS = masked_softmax(scores_BHTS, visible_B1TS)
        self.show(weights_BHTS, watch)
        dropout = self.dropout if self.training else 0.0
        if (gate := self.gate) is not None:
            values_BHSK = gate.on_values(values_BHSK)
        return self._joined(F.dropout(weights_BHTS, dropout) @ values_BHSK)

    def distances(self, S: int, T: int | None = None) -> Tensor:
        """The sinusoid r_d of each distance d = S − 1, …, 0, …, −(T − 1) [S + T − 1, D]; without T
        it is S."""
        back_SD = self.sinusoids(S)
        ahead_TD = back_SD[1:T]
        # sin(−x) = −sin(x) and cos(−x) = cos(x), so the table needs no negative positions.
        sign_D = torch.ones_like(back_SD[:1])
        sign_D[:, 0::2] = -1
        return torch.cat((back_SD.flip(0), ahead_TD * sign_D))


def by_key(distance_BHTR: Tensor) -> Tensor:
    """Relative shift: from a column for each distance S − 1 … −(T − 1) to one for each key [B, H,
    T, S], for queries at the last T of S positions.

    Row t needs the columns from T − 1 − t on. Padding one column in front and reading the same
    memory with rows that are one shorter does exactly that: Dai et al. 2019, appendix B.
    """
    B, H, T, R = distance_BHTR.shape
    padded_BHTR = F.pad(distance_BHTR, (1, 0))
    shifted_BHTR = padded_BHTR.view(B, H, -1)[..., T:].reshape(B, H, T, R)
    return shifted_BHTR[..., : R - T + 1]
