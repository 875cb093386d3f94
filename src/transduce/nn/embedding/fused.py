"""Fused embedding on a GPU: token vectors, positions and dropout in one Triton kernel.

Written out it is a look-up, a product, another look-up, a sum and a dropout, each of which reads
and writes all vectors of a batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from transduce.nn.residual import WIDEST, tile_of_rows
from transduce.nn.torch_private import embedding_backward
from transduce.nn.triton import early, kernels


def applies(tokens_BT: Tensor, table_VD: Tensor) -> bool:
    """Whether `embedded` can be used: in training on a GPU, with float32 tables."""
    return (
        tokens_BT.is_cuda
        and torch.is_grad_enabled()
        and torch.is_autocast_enabled("cuda")
        and table_VD.dtype == torch.float32
        and table_VD.shape[1] <= WIDEST
    )


def embedded(
    tokens_BT: Tensor,
    table_VD: Tensor,
    scale: float,
    positions: tuple[Tensor, Tensor] | None,
    dropout: float,
) -> Tensor:
    """dropout(scale · table[tokens] + positions), x_BTD.

    Positions are a fixed table [T, D] and the row of each token in it [B, T].
    """
    seed = torch.randint(2**31, (1,), device=tokens_BT.device) if dropout > 0 else None
    x_BTD: Tensor = _Embedded.apply(  # type: ignore[no-untyped-call]
        tokens_BT, table_VD, scale, positions, seed, dropout
    )
    return x_BTD


class _Embedded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        table: Tensor,
        scale: float,
        positions: tuple[Tensor, Tensor] | None,
        seed: Tensor | None,
        dropout: float,
    ) -> Tensor:
        tokens = tokens.contiguous()
        width = table.shape[1]
        x = torch.empty(*tokens.shape, width, device=table.device)
        sinusoids, places = positions if positions is not None else (table, tokens)
        tile = tile_of_rows(width)
        kernels().embed[(-(-tokens.numel() // tile["ROWS"]),)](
            tokens,
            table,
            sinusoids,
            places.contiguous(),
            table if seed is None else seed,
            x,
            tokens.numel(),
            width,
            scale,
            dropout,
            POSITIONS=positions is not None,
            DROPS=seed is not None,
            **early(table.device, learning=any(ctx.needs_input_grad)),
            **tile,
        )
        # The dropout mask is recomputed from the seed in the backward pass rather than stored.
        ctx.save_for_backward(tokens, seed)
        ctx.how = (len(table), scale, dropout)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        tokens, seed = ctx.saved_tensors
        vocabulary, scale, dropout = ctx.how
        grad = gradients[0].contiguous()
        width = grad.shape[-1]
        by_rows = torch.empty_like(grad)
        tile = tile_of_rows(width)
        kernels().embed_backward[(-(-tokens.numel() // tile["ROWS"]),)](
            grad,
            grad if seed is None else seed,
            by_rows,
            tokens.numel(),
            width,
            scale,
            dropout,
            DROPS=seed is not None,
            **tile,
        )
        by_table = embedding_backward(by_rows, tokens, vocabulary)
        return None, by_table, None, None, None, None
