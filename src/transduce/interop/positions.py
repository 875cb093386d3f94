"""Positions as a table of so many rows, all that other engines know of them."""

from __future__ import annotations

import torch
from torch import Tensor

from transduce import recipe
from transduce.nn.embedding.tokens import TokenEmbedding

LEAST = 2048  # ours are waves that go on as far as one likes; a table has to end


def positions(part: recipe.Encoder | recipe.Decoder | None) -> int:
    """The longest sequence, END counted, that an exported part has positions for."""
    most = getattr(part, "max_positions", 0)
    return most if getattr(part, "positions", "") == "learned" else max(most, LEAST)


def table(embedding: TokenEmbedding, rows: int) -> Tensor:
    """What is put to the embeddings, [rows, width]; zeros where nothing is."""
    if embedding.positions is None:
        return torch.zeros(rows, embedding.table.weight.shape[1])
    table_TD: Tensor = embedding.positions.positions(rows)
    return table_TD.detach().float().cpu()
