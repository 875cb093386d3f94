"""Positions as a table of fixed size, for engines that compute none."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce import recipe
from transduce.nn.embedding.tokens import TokenEmbedding

MIN_POSITIONS = 2048  # sinusoids have no end; a table must have one


def positions(part: recipe.Encoder | recipe.Decoder | None) -> int:
    """The longest sequence, including END, that an exported encoder or decoder has positions
    for.
    """
    maximum = getattr(part, "max_positions", 0)
    return maximum if getattr(part, "positions", "") == "learned" else max(maximum, MIN_POSITIONS)


def table(embedding: TokenEmbedding, rows: int) -> Tensor:
    """The table that is added to the embeddings, [rows, width]; zeros without positions."""
    if embedding.positions is None:
        return torch.zeros(rows, embedding.table.weight.shape[1])
    table_TD: Tensor = embedding.positions.positions(rows)
    return table_TD.detach().float().cpu()
