"""Token embeddings: a look-up table, positional encoding, dropout."""

from __future__ import annotations

import math

from torch import Tensor, nn

from transduce.nn.embedding.fused import applies, embedded
from transduce.nn.positions import ExplicitPositions, Positioned
from transduce.nn.residual import dropped


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
