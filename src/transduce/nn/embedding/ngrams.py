"""Hashed n-gram embeddings, as in fastText: rows of the table may collide."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Two multipliers modulo the prime 2³¹ − 1 that scatter well (Fishman and Moore 1986). The hash
# decides the rows of trained weights: never change these numbers.
PRIME, MULTIPLIER, SCATTER = 2**31 - 1, 630_360_016, 742_938_285

# Adam moves a row that had one gradient as far as a row that had hundreds. Most n-grams occur once
# or twice: unless their steps are smaller than those of words, the model overfits.
SCALE = 0.2


class NGrams(nn.Module):
    """For each token, the sum of the vectors of the n-grams that end there, n from 2 to `longest`.

    Joulin et al. 2017, https://arxiv.org/abs/1607.01759. There are too many n-grams for a
    vocabulary: n-grams are hashed, and some share a row.
    """

    def __init__(self, longest: int, size: int, width: int) -> None:
        super().__init__()
        self.longest = longest
        self.table = nn.Embedding(size, width)
        # Zeros: an n-gram that does not occur in training then adds nothing, rather than noise.
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens_BT: Tensor, place_BT: Tensor, before: int) -> Tensor:
        """tokens_BT, each at position place_BT of its sequence, to x_BTD; `before` is the token
        that pads the beginning.

        A row may hold several packed sequences.
        """
        rows_BTN = self.rows(tokens_BT, place_BT, before)
        x_BTD: Tensor = self.table(rows_BTN).sum(dim=2) * SCALE
        return x_BTD

    def rows(self, tokens_BT: Tensor, place_BT: Tensor, before: int) -> Tensor:
        """The rows of the table for the n-grams that end at each token, [B, T, longest − 1]."""
        tokens_BT = tokens_BT.long()  # products have up to 62 bits
        rows = []
        for n in range(2, self.longest + 1):
            hash_BT = torch.full_like(tokens_BT, n)
            for back in reversed(range(n)):
                token_BT = tokens_BT.roll(back, dims=1).masked_fill(place_BT < back, before)
                hash_BT = (hash_BT * MULTIPLIER + token_BT) % PRIME
            rows.append(hash_BT * SCATTER % PRIME % self.table.num_embeddings)
        return torch.stack(rows, dim=2)
