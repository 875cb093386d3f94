"""Ids of texts whose tokens can be copied: unknown tokens keep a number, and so their spelling.

A model that copies (models/copying.py) reads and writes an extended vocabulary: that of the target,
and beyond it a number for each position of a source. Here texts get such ids, and ids their text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from transduce.data.tokens.tokenizer import SPECIALS, UNKNOWN, Tokens
from transduce.errors import ModelError

NOT_COPIED = -1


class CopiedTokens:
    """The vocabularies of a model that copies. Raises ModelError where nothing could be copied:
    source and target must be cut into the same units, as tokens are compared by their spelling.
    """

    def __init__(self, source: Tokens, target: Tokens) -> None:
        ours, theirs = (tokens.registered or tokens.level for tokens in (source, target))
        if ours != theirs:
            raise ModelError(
                f"model.decoder.copying writes source tokens into the target, but the source has "
                f"tokens of level {ours} and the target of level {theirs}; give both the same "
                f"level in data.tokens, or leave copying out"
            )
        self.source, self.target = source, target

    def copied_as(self) -> list[int]:
        """The number of each source token in the target's vocabulary; the size of that where it has
        no such token; NOT_COPIED for special tokens and tags."""
        numbers = self._target_numbers
        found = [numbers.get(name, len(self.target)) for name in self.source.names()]
        for number in (*range(len(SPECIALS)), *self.source.tags.values()):
            found[number] = NOT_COPIED
        return found

    @cached_property
    def _target_numbers(self) -> dict[str, int]:
        """The target's tokens that a source may have too, by name."""
        silent = {*range(len(SPECIALS)), *self.target.tags.values()}
        names = enumerate(self.target.names())
        return {name: number for number, name in names if number not in silent}

    def source_ids(self, text: str, ids: list[int]) -> list[int]:
        """The ids of a source, those of unknown tokens as `models/copying.py` says."""
        if UNKNOWN not in ids:
            return ids
        first: dict[str, int] = {}
        spelt = self.source.spelt(text, ids)
        numbered = []
        for place, (number, token) in enumerate(zip(ids, spelt, strict=True)):
            if number == UNKNOWN and token:
                known = self._target_numbers.get(token)
                at = first.setdefault(token, place)
                number = len(self.source) + (len(self.target) + at if known is None else known)
            numbered.append(number)
        return numbered

    def target_ids(
        self, text: str, ids: list[int], source: str, source_ids: Sequence[int]
    ) -> list[int]:
        """The ids of a target; of an unknown token that stands in its source, the position there.

        source_ids: as `source_ids` gives them, which may be cut off at a maximum length.
        """
        if UNKNOWN not in ids:
            return ids
        never, places = {UNKNOWN, *self.source.tags.values()}, dict[str, int]()
        for place, token in enumerate(self.source.spelt(source, source_ids)):
            if source_ids[place] not in never:
                places.setdefault(token, place)
        return [
            len(self.target) + places[token] if number == UNKNOWN and token in places else number
            for number, token in zip(ids, self.target.spelt(text, ids), strict=True)
        ]
