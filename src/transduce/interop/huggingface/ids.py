"""Our ids and those of an export or of an imported model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN
from transduce.errors import ModelError


@dataclass(frozen=True)
class Shifted:
    """Target ids of an export of our own model: those of the source come before them."""

    first: int

    def theirs(self, ids: Iterable[int]) -> list[int]:
        return [self.first + number for number in ids]

    def ours(self, ids: Iterable[int]) -> list[int]:
        return [number - self.first for number in ids]


@dataclass(frozen=True)
class Renumbered:
    """Where another vocabulary has what are our first four tokens, and its size.

    Our vocabulary has these four, then all others in their order there, then its tags. Two kinds of
    rows are copies, which are never written: BEGIN, where the decoder there starts with a token
    that is something else too (END in BART, PAD in Marian); and pieces that its tokenizer cuts
    texts into, but that its vocabulary does not have: they are as the unknown token.
    """

    pad: int
    unknown: int
    begin: int
    end: int
    vocabulary: int
    unknowns: int = 0
    """How many pieces there are that its vocabulary does not have."""
    tags: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if len({self.pad, self.unknown, self.end}) < 3:
            raise ModelError(
                f"its tokens for padding, unknown and end have the ids {self.pad}, {self.unknown} "
                f"and {self.end}; transduce needs three different ones"
            )

    @property
    def copies_begin(self) -> bool:
        return self.begin in (self.pad, self.unknown, self.end)

    @cached_property
    def rows(self) -> list[int]:
        """Of each of our ids, the id there."""
        special = [self.pad, self.unknown, self.begin, self.end]
        apart = {*special, *self.tags}
        rest = [number for number in range(self.vocabulary) if number not in apart]
        return [*special, *rest, *[self.unknown] * self.unknowns, *self.tags]

    @cached_property
    def copies(self) -> list[int]:
        """Those of our ids that are copies."""
        first = len(self.rows) - len(self.tags) - self.unknowns
        return [BEGIN] * self.copies_begin + list(range(first, first + self.unknowns))

    @cached_property
    def places(self) -> dict[int, int]:
        """Of each id there, ours."""
        copies = set(self.copies)
        return {row: number for number, row in enumerate(self.rows) if number not in copies}

    def to_ours(self, table_V: Tensor) -> Tensor:
        """Rows of a table there, as rows of ours."""
        return table_V.index_select(0, torch.tensor(self.rows))

    def to_theirs(self, table_V: Tensor) -> Tensor:
        """The inverse of `to_ours`: copies are left out."""
        return table_V.index_select(0, torch.tensor(self.ours(range(self.vocabulary))))

    def theirs(self, ids: Iterable[int]) -> list[int]:
        return [self.rows[number] for number in ids]

    def ours(self, ids: Iterable[int]) -> list[int]:
        return [self.places[number] for number in ids]

    def to_json(self) -> dict[str, Any]:
        names = self.__dataclass_fields__
        return {name: getattr(self, name) for name in names if name != "tags"} | {
            "tags": list(self.tags)
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Renumbered:
        return cls(**{**values, "tags": tuple(values["tags"])})
