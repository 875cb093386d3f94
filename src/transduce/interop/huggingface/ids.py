"""Our ids and those of an export or an imported model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD, SPECIALS, UNKNOWN


@dataclass(frozen=True)
class Shifted:
    """Target ids of an export of our own model: those of the source come before them."""

    first: int

    def theirs(self, ids: Iterable[int]) -> list[int]:
        return [self.first + number for number in ids]

    def ours(self, ids: Iterable[int]) -> list[int]:
        return [number - self.first for number in ids]


@dataclass(frozen=True)
class SpecialIds:
    """Where another vocabulary has what are our first four tokens, and its size.

    Our vocabulary has these four, and then all others in their order there. Where its decoder
    starts with a token that is also something else (as END in BART, PAD in Marian), our BEGIN is a
    row more: a copy, which is never written.
    """

    pad: int
    unknown: int
    begin: int
    end: int
    vocabulary: int

    @property
    def copies_begin(self) -> bool:
        return self.begin in (self.pad, self.unknown, self.end)

    def rows(self) -> list[int]:
        """Of each of our ids, the id there."""
        special = [self.pad, self.unknown, self.begin, self.end]
        return special + [number for number in range(self.vocabulary) if number not in special]

    def to_ours(self, table_V: Tensor) -> Tensor:
        """Rows of a table there, as rows of ours."""
        return table_V.index_select(0, torch.tensor(self.rows()))

    def to_theirs(self, table_V: Tensor) -> Tensor:
        """The inverse of `to_ours`: a copied BEGIN, and what follows the vocabulary, are left
        out."""
        numbers = self.ours(range(self.vocabulary))
        return table_V.index_select(0, torch.tensor(numbers))

    def theirs(self, ids: Iterable[int]) -> list[int]:
        rows = self.rows()
        return [rows[number] if number < len(rows) else self.unknown for number in ids]

    def ours(self, ids: Iterable[int]) -> list[int]:
        places = {row: number for number, row in enumerate(self.rows())}
        if self.copies_begin:  # what is there twice is BEGIN only at the beginning
            known = {self.pad: PAD, self.unknown: UNKNOWN, self.end: END}
            places[self.begin] = known[self.begin]
        return [places[number] for number in ids]

    def to_json(self) -> dict[str, int]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SpecialIds:
        return cls(**{name: int(values[name]) for name in cls.__dataclass_fields__})


assert tuple(range(len(SPECIALS))) == (PAD, UNKNOWN, BEGIN, END)
