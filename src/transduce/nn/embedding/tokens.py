"""Token embeddings: a look-up table, positional encoding, dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from transduce.nn.pass_buffers import dropout_seed
from transduce.nn.positions import ExplicitPositions, Positioned
from transduce.nn.residual import WIDEST, dropped, tile_of_rows
from transduce.nn.torch_private import embedding_backward
from transduce.nn.triton import early, kernels


class TokenEmbedding(nn.Module):
    """Tokens to vectors: x_i = √E · e_i, with p_i added or concatenated (Vaswani et al. 2017)."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        positions: Positioned | None,
        dropout: float,
        *,
        scaled: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        """scaled: by √E; otherwise x_i = e_i. norm: of the sum, before dropout (as in BART, Lewis
        et al. 2020, https://arxiv.org/abs/1910.13461)."""
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        self.scale = math.sqrt(width) if scaled else 1.0
        self.positions = positions
        self.norm = norm
        self.dropout = dropout

    def forward(self, tokens_BT: Tensor, start: int | ExplicitPositions = 0) -> Tensor:
        """tokens_BT → x_BTD; `start` is the position of the first of them, or of each."""
        sinusoids = self.positions is None or self.positions.adds_sinusoids
        plain = sinusoids and self.norm is None
        if isinstance(start, ExplicitPositions) and plain and applies(tokens_BT, self.table.weight):
            positions = None
            if self.positions is not None:
                positions = (self.positions.positions(start.end), start.of_BT)
            dropout = self.dropout if self.training else 0.0
            return embedded(tokens_BT, self.table.weight, self.scale, positions, dropout)
        x_BTD = self.table(tokens_BT) * self.scale
        if self.positions is not None:
            x_BTD = self.positions(x_BTD, start)
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        return dropped(x_BTD, self.dropout, self.training)


class TaggedEmbedding(TokenEmbedding):
    """Tokens to vectors where the tags that a sequence begins with all have the position 0, and
    what follows counts from 1: the position of a letter does not depend on the number of tags (Wu
    et al. 2021, section 3, https://aclanthology.org/2021.eacl-main.163).
    """

    is_tag_V: Tensor

    def __init__(
        self,
        vocabulary: int,
        width: int,
        positions: Positioned | None,
        dropout: float,
        *,
        tags: Sequence[int],
        scaled: bool = True,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__(vocabulary, width, positions, dropout, scaled=scaled, norm=norm)
        is_tag_V = torch.zeros(vocabulary, dtype=torch.bool)
        is_tag_V[list(tags)] = True
        # Follows from the vocabulary, so that it is not saved.
        self.register_buffer("is_tag_V", is_tag_V, persistent=False)

    def forward(self, tokens_BT: Tensor, start: int | ExplicitPositions = 0) -> Tensor:
        return super().forward(tokens_BT, self.positions_of(tokens_BT, start))

    def positions_of(self, tokens_BT: Tensor, start: int | ExplicitPositions) -> ExplicitPositions:
        """The position of each token; start: as if there were no tags, of whole sequences."""
        T = tokens_BT.shape[1]
        counted_T = torch.arange(T, device=tokens_BT.device)
        if isinstance(start, ExplicitPositions):
            counted_BT, end = start.of_BT, start.end
        else:
            counted_BT, end = (counted_T + start).expand_as(tokens_BT), T + start
        tags_BT = self.is_tag_V[tokens_BT.long()].long()
        until_BT = tags_BT.cumsum(dim=1)
        # Those of sequences that were laid before this one in the same row do not count.
        first_BT = (counted_T - counted_BT).clamp(min=0)
        before_BT = (until_BT - tags_BT).gather(1, first_BT.expand_as(tags_BT))
        of_BT = (counted_BT - (until_BT - before_BT) + 1).clamp(min=0)
        return ExplicitPositions(of_BT, end + 1)


# ---------------------------------------------------------------- the same in one kernel, on a GPU


def applies(tokens_BT: Tensor, table_VD: Tensor) -> bool:
    """Whether `embedded` can be used: on a GPU, in training with float32 tables."""
    if not tokens_BT.is_cuda or table_VD.shape[1] > WIDEST:
        return False
    if torch.is_autocast_enabled("cuda"):
        return torch.is_grad_enabled() and table_VD.dtype == torch.float32
    return not torch.is_grad_enabled() and table_VD.dtype in (torch.bfloat16, torch.float32)


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
    seed = dropout_seed(tokens_BT.device) if dropout > 0 else None
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
        x = torch.empty(*tokens.shape, width, device=table.device, dtype=table.dtype)
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
            # Not early: the kernels of a decoding step rely on one that waits for the step before.
            **early(table.device, learning=True),
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
