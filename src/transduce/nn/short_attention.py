"""Attention over short sequences on a GPU: one program for one head of one sentence.

Kernels made for thousands of positions waste most of their tiles on a sentence of thirty, and a
sentence is what translation is about. Here queries, keys and values of a head fit into registers,
are read once and written once, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transduce.nn.kernels import kernels

LONGEST = 64  # beyond it a head's tiles outgrow the registers; not measured further
HEAD_WIDTHS = (16, 32, 64, 128)


def fits(query_BHTK: Tensor, keys_BHSK: Tensor, dropout: float) -> bool:
    """Whether `short_attention` can stand in for the general kernel here."""
    return (
        query_BHTK.is_cuda
        and query_BHTK.dtype in (torch.bfloat16, torch.float16)
        and 1 < query_BHTK.shape[2] <= LONGEST
        and keys_BHSK.shape[2] <= LONGEST
        and query_BHTK.shape[3] in HEAD_WIDTHS
        and dropout == 0.0
    )


def short_attention(
    query_BHTK: Tensor,
    keys_BHSK: Tensor,
    values_BHSK: Tensor,
    visible_BS: Tensor | None,
    causal: bool,
) -> Tensor:
    """softmax(QKᵀ/√K) V, context [B, H, T, K]; a row that sees nothing gives zeros."""
    context_BTHK: Tensor = _ShortAttention.apply(  # type: ignore[no-untyped-call]
        query_BHTK, keys_BHSK, values_BHSK, visible_BS, causal
    )
    return context_BTHK.transpose(1, 2)


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, causal: bool
    ) -> Tensor:
        B, H, T, K = q.shape
        # Laid out as the output projection reads it: no copy in between.
        out_BTHK = q.new_empty(B, T, H, K)
        _launch(kernels().attention, (q, k, v), visible, causal, out_BTHK)
        ctx.save_for_backward(q, k, v, visible)
        ctx.causal = causal
        return out_BTHK

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, visible = ctx.saved_tensors
        (B, H, T, K), S = q.shape, k.shape[2]
        dq = q.new_empty(B, T, H, K)
        dk, dv = q.new_empty(B, S, H, K), q.new_empty(B, S, H, K)
        grad_BTHK = gradients[0].contiguous()
        backward = kernels().attention_backward
        _launch(backward, (q, k, v), visible, ctx.causal, grad_BTHK, dq, dk, dv)
        return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2), None, None


def _launch(
    kernel: Any,
    inputs: tuple[Tensor, Tensor, Tensor],
    visible: Tensor | None,
    causal: bool,
    *outputs: Tensor,
) -> None:
    q, k, v = inputs
    (B, H, T, K), S = q.shape, k.shape[2]
    kernel[(B * H,)](
        q,
        k,
        v,
        q if visible is None else visible,
        *outputs,
        *_strides(q),
        *_strides(k),
        *_strides(v),
        H,
        T,
        S,
        K**-0.5,
        VISIBLE=visible is not None,
        CAUSAL=causal,
        K=K,
        BLOCK_T=_block(T),
        BLOCK_S=_block(S),
        num_warps=2 if max(T, S) <= 32 else 4,
    )


def _strides(x_BHTK: Tensor) -> tuple[int, int, int]:
    return x_BHTK.stride(0), x_BHTK.stride(1), x_BHTK.stride(2)


def _block(length: int) -> int:
    return 16 if length <= 16 else 32 if length <= 32 else 64
