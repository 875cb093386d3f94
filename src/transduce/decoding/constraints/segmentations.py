"""All ways to write a phrase with the subwords of a vocabulary."""

from __future__ import annotations

from heapq import heappop, heappush

from transduce.data.tokens.tokenizer import SPECIALS, Tokens

MAX_SEGMENTATIONS = 1000  # segmentations of a phrase
END_OF_PHRASE = "\0"  # after a text: tokens that have punctuation there


class Segmentations:
    """Finds the token sequences that have the same text as a phrase.

    The last token may have punctuation after the phrase: `er,` ends `Leiter` as `er` does.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self._ids: dict[str, list[int]] = {}
        """The tokens of each text, without the punctuation at its end."""
        tags = set(tokens.tags.values())
        for number in range(len(SPECIALS), len(tokens)):
            if number in tags:
                continue
            (piece,) = tokens.pieces([number])
            self._ids.setdefault(piece, []).append(number)
            bare = piece.rstrip("".join(c for c in set(piece) if not c.isalnum()))
            if bare and bare != piece:
                self._ids.setdefault(bare + END_OF_PHRASE, []).append(number)
        self._longest = max(map(len, self._ids), default=0)

    def of(self, ids: list[int]) -> list[list[int]]:
        """The sequences, those with the fewest tokens first, at most MAX_SEGMENTATIONS; among them
        the given one."""
        text = "".join(self.tokens.pieces(ids))
        fewest = self._fewest(text)
        found: dict[tuple[int, ...], None] = {tuple(ids): None}
        waiting: list[tuple[int, int, tuple[int, ...]]] = []
        if fewest[0] is not None:
            heappush(waiting, (fewest[0], 0, ()))
        while waiting and len(found) < MAX_SEGMENTATIONS:
            _, at, before = heappop(waiting)
            if at == len(text):
                found[before] = None
                continue
            for end in range(at + 1, min(len(text), at + self._longest) + 1):
                left = fewest[end]
                if left is None:
                    continue
                for number in self._tokens(text, at, end):
                    heappush(waiting, (len(before) + 1 + left, end, (*before, number)))
        return [list(sequence) for sequence in found]

    def _tokens(self, text: str, start: int, end: int) -> list[int]:
        piece = text[start:end]
        last = self._ids.get(piece + END_OF_PHRASE, []) if end == len(text) else []
        return self._ids.get(piece, []) + last

    def _fewest(self, text: str) -> list[int | None]:
        """From each place of the text, the fewest tokens to its end; None: there is no way."""
        fewest: list[int | None] = [None] * len(text) + [0]
        for at in range(len(text) - 1, -1, -1):
            ends = range(at + 1, min(len(text), at + self._longest) + 1)
            ways = [
                1 + left
                for end in ends
                if (left := fewest[end]) is not None and self._tokens(text, at, end)
            ]
            fewest[at] = min(ways, default=None)
        return fewest
