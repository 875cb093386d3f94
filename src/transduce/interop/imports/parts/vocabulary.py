"""Vocabularies of other toolkits in our order: the four special tokens first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN

BANNED_BIAS = -1e9  # the bias of a token that is never written: its probability is 0


@dataclass(frozen=True)
class Layout:
    """Which of their rows each of our tokens has; None where they have none."""

    rows: tuple[int | None, ...]
    names: tuple[str, ...]
    """Of our tokens after the special ones."""
    size: int
    """How many rows they have."""
    unwritten: frozenset[int]
    """Our tokens that are copies or new, and so are never written."""

    def embeddings(self, table_VD: Tensor) -> Tensor:
        """Their rows in our order; zeros where they have none."""
        padded_VD = torch.cat([table_VD, table_VD.new_zeros(1, table_VD.shape[1])])
        return padded_VD[self._places(len(table_VD))]

    def bias(self, bias_V: Tensor) -> Tensor:
        """Of the output layer: what is never written has the probability 0."""
        found_V = torch.cat([bias_V, bias_V.new_zeros(1)])[self._places(len(bias_V))]
        found_V[list(self.unwritten)] = BANNED_BIAS
        return found_V

    def _places(self, missing: int) -> Tensor:
        return torch.tensor([missing if row is None else row for row in self.rows])


def arrange(names: Sequence[str], specials: Sequence[str | None]) -> Layout:
    """A vocabulary in our order; `specials` are their names of PAD, UNKNOWN, BEGIN and END.

    A special token that they have not, or use for two things (as a BEGIN that is their END), gets
    a row of its own, which is never written.
    """
    first: dict[str, int] = {}
    for row, name in enumerate(names):
        first.setdefault(name, row)
    found = [None if name is None else first.get(name) for name in specials]
    owner: dict[int, int] = {}
    for special in (END, UNKNOWN, PAD, BEGIN):  # which of two keeps a row
        place = found[special]
        if place is not None:
            owner.setdefault(place, special)
    kept = set(owner.values())
    others = [row for row in range(len(names)) if row not in owner]
    used, fresh = set(SPECIALS), []
    for row in others:
        name = names[row]
        while name in used:
            name += "_"  # such as an <s> that begins nothing
        used.add(name)
        fresh.append(name)
    unwritten = frozenset(range(len(SPECIALS))) - kept
    return Layout((*found, *others), tuple(fresh), len(names), unwritten)
