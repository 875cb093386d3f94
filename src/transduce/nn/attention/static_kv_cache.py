"""KV cache of fixed size, for decoding with CUDA graphs and continuous batching.

No shape changes from step to step, so a step can be captured as a CUDA graph. Every row has its own
length, so a finished sentence is replaced by the next one while the other rows continue.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.nn.attention.attention import fused_attention
from transduce.nn.masks import Mask
from transduce.nn.triton import early, kernels

BLOCK, WARPS = 16, 1  # positions that a Triton program reads at a time, and its warps
LONG = 1024  # positions from which on these are
LONG_BLOCK, LONG_WARPS = 64, 4


@dataclass
class StaticSelfAttentionCache:
    """Keys and values of the past steps of each row, for self-attention.

    The keys and then values of step t of row r are in store_RTE[origin_RT[r, t], t]: when beam
    search reorders hypotheses, this small table of back-pointers changes, not the store. Without
    the table they are in row r.
    """

    store_RTE: Tensor
    lengths_R: Tensor
    """Steps written, int32; incremented by the caller after all layers have done the step."""
    origin_RT: Tensor | None = None

    def attend(self, projected_R1E: Tensor, heads: int) -> Tensor:
        """Append one step, given its queries, keys and values [R, 1, 3D]; returns context [R, 1,
        D].
        """
        if projected_R1E.is_cuda:
            return _launch(projected_R1E, self.store_RTE, self.lengths_R, self.origin_RT, 1, heads)
        R, T, E = self.store_RTE.shape
        rows_R, lengths_R = torch.arange(R), self.lengths_R.long()
        query_R1D, new_R1E = torch.split(projected_R1E, [E // 2, E], dim=-1)
        self.store_RTE[rows_R, lengths_R] = new_R1E.squeeze(1)
        past_RTE = self.store_RTE
        if self.origin_RT is not None:
            origin_RT = self.origin_RT.long().scatter(1, lengths_R[:, None], rows_R[:, None])
            past_RTE = self.store_RTE[origin_RT, torch.arange(T)]
        return _attend(query_R1D, past_RTE, lengths_R + 1, heads)


@dataclass
class StaticCrossAttentionCache:
    """Projected encoder outputs, for cross-attention; `each` consecutive rows share one source."""

    store_BSE: Tensor
    lengths_B: Tensor
    each: int = 1

    def attend(self, query_R1D: Tensor, heads: int) -> Tensor:
        if query_R1D.is_cuda:
            return _launch(query_R1D, self.store_BSE, self.lengths_B, None, self.each, heads)
        store_RSE = self.store_BSE.repeat_interleave(self.each, dim=0)
        lengths_R = self.lengths_B.long().repeat_interleave(self.each)
        return _attend(query_R1D, store_RSE, lengths_R, heads)


def _attend(query_R1D: Tensor, store_RTE: Tensor, lengths_R: Tensor, heads: int) -> Tensor:
    query, keys, values = (
        x_RTD.unflatten(-1, (heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
        for x_RTD in (query_R1D, *store_RTE.chunk(2, dim=-1))
    )
    seen_RT = torch.arange(store_RTE.shape[1]) < lengths_R[:, None]
    context_RH1K = fused_attention(query, keys, values, Mask(visible_BTS=seen_RT[:, None]))
    return context_RH1K.transpose(1, 2).flatten(2)


def _launch(
    query_R1E: Tensor,
    store_RTE: Tensor,
    lengths: Tensor,
    origin_RT: Tensor | None,
    each: int,
    heads: int,
) -> Tensor:
    D = store_RTE.shape[2] // 2
    R = query_R1E.shape[0]
    own = query_R1E.shape[2] != D
    long = store_RTE.shape[1] >= LONG
    query_R1E = query_R1E.contiguous()
    context_R1D = query_R1E.new_empty(R, 1, D)
    kernels().step_attention[(R * heads,)](
        query_R1E,
        store_RTE,
        lengths,
        lengths if origin_RT is None else origin_RT,
        context_R1D,
        store_RTE.shape[1],
        each,
        (D // heads) ** -0.5,
        OWN=own,
        ORIGIN=origin_RT is not None,
        H=heads,
        K=D // heads,
        WIDTH=1 << (D // heads - 1).bit_length(),
        BLOCK=LONG_BLOCK if long else BLOCK,
        num_warps=LONG_WARPS if long else WARPS,
        **early(store_RTE.device),
    )
    return context_R1D
