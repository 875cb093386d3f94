"""Tokens together with those before them: n-grams, hashed into a table."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Two multipliers modulo the prime 2³¹ − 1 that scatter well (Fishman and Moore 1986). Trained
# weights lie where these numbers put them: never change them.
PRIME, MULTIPLIER, SCATTER = 2**31 - 1, 630_360_016, 742_938_285

# Adam moves a row that had one gradient as far as one that had hundreds. Most n-grams come once or
# twice: unless their steps are smaller than those of words, training is learnt by heart.
SCALE = 0.2


class NGrams(nn.Module):
    """For each token, the sum of a vector for each n-gram that ends there, n from 2 to `longest`.

    Joulin et al. 2017, https://arxiv.org/abs/1607.01759. There are too many n-grams for a
    vocabulary: a hash tells each its row, and some share one.
    """

    def __init__(self, longest: int, size: int, width: int) -> None:
        super().__init__()
        self.longest = longest
        self.table = nn.Embedding(size, width)
        # An n-gram that training never has then says nothing, instead of something drawn.
        nn.init.zeros_(self.table.weight)

    def forward(self, tokens_BT: Tensor, place_BT: Tensor, before: int) -> Tensor:
        """tokens_BT, each at its place in its sequence, to x_BTD; `before` stands before place 0.

        Tokens may be those of several sequences, one after the other in a row.
        """
        rows_BTN = self.rows(tokens_BT, place_BT, before)
        x_BTD: Tensor = self.table(rows_BTN).sum(dim=2) * SCALE
        return x_BTD

    def rows(self, tokens_BT: Tensor, place_BT: Tensor, before: int) -> Tensor:
        """Which rows of the table the n-grams have that end at each token, [B, T, longest − 1]."""
        tokens_BT = tokens_BT.long()  # products have up to 62 bits
        rows = []
        for n in range(2, self.longest + 1):
            hash_BT = torch.full_like(tokens_BT, n)
            for back in reversed(range(n)):
                token_BT = tokens_BT.roll(back, dims=1).masked_fill(place_BT < back, before)
                hash_BT = (hash_BT * MULTIPLIER + token_BT) % PRIME
            rows.append(hash_BT * SCATTER % PRIME % self.table.num_embeddings)
        return torch.stack(rows, dim=2)
