"""Fused attention for short sequences on a GPU: one Triton program for each head of each sentence.

Kernels made for thousands of positions waste most of their tiles on a sentence of thirty tokens.
Here the queries, keys and values of a head fit into registers and are read once and written once,
forward and backward. They are read from, and their gradients written to, the tensors that the
projections use, without copies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transduce.nn.gradient_sums import GRADIENT_SUMS
from transduce.nn.linear import column_sums, counters_of_sums
from transduce.nn.masks import Mask, Segments
from transduce.nn.pass_buffers import dropout_seed
from transduce.nn.triton import kernels

LONGEST = 64  # beyond it a head's tiles outgrow the registers; not measured further
HEAD_WIDTHS = (16, 32, 64, 128)
# Of the backward pass over at most 16 positions: more programs run at the same time (a tenth
# faster; with longer sequences the registers are too few).
FEW_REGISTERS = 128


def fits(query_BTD: Tensor, length: int, heads: int, mask: Mask | None) -> bool:
    """Whether `short_attention` can replace the general kernel; `length` is the number of keys."""
    width = query_BTD.shape[-1]
    T = query_BTD.shape[1]
    if not query_BTD.is_cuda or query_BTD.dtype not in (torch.bfloat16, torch.float16):
        return False
    if width // heads not in HEAD_WIDTHS:
        return False
    if mask is not None and mask.segments is not None:
        return mask.only_segments and mask.segments.longest <= LONGEST
    plain = mask is None or (mask.only_causal and length == T)
    return plain and 1 < T <= LONGEST and length <= LONGEST


def short_attention(
    query_BTE: Tensor,
    memory_BSE: Tensor | None,
    heads: int,
    mask: Mask | None,
    dropout: float = 0.0,
) -> Tensor:
    """softmax(QKᵀ/√K) V for all heads side by side; context [B, T, D].

    The memory is [B, S, 2D], keys and then values; without it the query is [B, T, 3D]: the queries,
    keys and values of self-attention.
    """
    segments = None if mask is None else mask.segments
    causal = mask is not None and mask.causal
    seed = dropout_seed(query_BTE.device) if dropout > 0 else None
    context_BTD: Tensor = _ShortAttention.apply(  # type: ignore[no-untyped-call]
        query_BTE, memory_BSE, heads, segments, causal, seed, dropout
    )
    return context_BTD


class _ShortAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        memory: Tensor | None,
        heads: int,
        segments: Segments | None,
        causal: bool,
        seed: Tensor | None,
        dropout: float,
    ) -> Tensor:
        query = query.contiguous()
        memory = None if memory is None else memory.contiguous()
        ctx.save_for_backward(query, memory, seed)
        ctx.how = (heads, segments, causal, dropout)
        ctx.counters = counters_of_sums(3 * query.shape[-1], query.device)
        inputs = _split(query, memory)
        context = inputs[0].new_empty(inputs[0].shape)
        _launch(kernels().attention, inputs, seed, ctx.how, context)
        return context

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        query, memory, seed = ctx.saved_tensors
        by_query = torch.empty_like(query)
        by_memory = None if memory is None else torch.empty_like(memory)
        segments = ctx.how[1]
        count = len(query) if segments is None else len(segments.query_offsets) - 1
        sums = _sums_of_each(query, count)
        memory_sums = None if memory is None else _sums_of_each(memory, count)
        _launch(
            kernels().attention_backward,
            _split(query, memory),
            seed,
            ctx.how,
            gradients[0].contiguous(),
            *_split(by_query, by_memory),
            *_split(sums, memory_sums),
            registers=FEW_REGISTERS,
        )
        GRADIENT_SUMS.put(by_query, column_sums(sums, ctx.counters))
        if by_memory is not None and memory_sums is not None:
            GRADIENT_SUMS.put(by_memory, column_sums(memory_sums, ctx.counters))
        return by_query, by_memory, None, None, None, None, None


def _sums_of_each(x_BTD: Tensor, count: int) -> Tensor:
    """A buffer for the sum over each sequence's rows."""
    return x_BTD.new_empty(count, x_BTD.shape[-1], dtype=torch.float32)


def _split(query: Tensor, memory: Tensor | None) -> tuple[Tensor, ...]:
    if memory is None:
        return query.chunk(3, dim=-1)
    return query, *memory.chunk(2, dim=-1)


def _launch(
    kernel: Any,
    inputs: tuple[Tensor, ...],
    seed: Tensor | None,
    how: tuple[int, Segments | None, bool, float],
    *others: Tensor,
    registers: int | None = None,
) -> None:
    """Gradients have the same memory layout as their tensors, so the same strides serve both.

    registers: at most so many for each thread, where the tiles are the smallest.
    """
    heads, segments, causal, dropout = how
    query_BTD, keys_BSD, _ = inputs
    (B, T, D), S = query_BTD.shape, keys_BSD.shape[1]
    if segments is None:
        offsets = (query_BTD, query_BTD)
        longest = max(T, S)
    else:
        offsets = (segments.query_offsets, segments.key_offsets)
        longest = segments.longest
        B = len(segments.query_offsets) - 1
    K = D // heads
    limited = registers is not None and longest <= 16 and K <= 64 and torch.version.hip is None
    kernel[(B * heads,)](
        *inputs,
        *offsets,
        query_BTD if seed is None else seed,
        *others,
        query_BTD.stride(1),
        keys_BSD.stride(1),
        heads,
        T,
        S,
        K**-0.5,
        dropout,
        PACKED=segments is not None,
        CAUSAL=causal,
        DROPS=seed is not None,
        K=K,
        BLOCK=16 if longest <= 16 else 32 if longest <= 32 else 64,
        num_warps=(1 if K <= 64 else 2) if longest <= 32 else 4,
        **({"maxnreg": registers} if limited else {}),
    )
