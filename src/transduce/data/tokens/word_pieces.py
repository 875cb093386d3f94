"""Texts cut into the pieces of a tokenizer of words or symbols, many at once.

Such a tokenizer decides about each character by itself: it is a space between pieces, or a piece of
its own (punctuation), or a part of one. It is asked about each character once; asking it about each
word takes some ten times longer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
from tokenizers import Tokenizer

from transduce.data.tokens.words import flattened, word_table

EDGE, NEXT = "\x01", "\x02"  # between two pieces, and between two texts
MAX_WORDS = 1 << 20
"""That are counted at once, some 100 MB."""
AT_ONCE = 1024  # texts whose words are counted in one step


class WordPieces:
    """The pieces of texts, as the normalizer and the pre-tokenizer of a tokenizer make them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._normal, self._cut = tokenizer.normalizer, tokenizer.pre_tokenizer
        self._edges: dict[str, str] = {}
        """What stands for a character that does not only continue a piece."""
        self._seen: set[str] = set()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> WordPieces | None:
        """None for a tokenizer whose pieces are no tokens, or which looks at more than one
        character."""
        parts = json.loads(tokenizer.to_str())
        cut = parts["pre_tokenizer"] if parts["model"]["type"] == "WordLevel" else None
        cuts = [] if cut is None else cut.get("pretokenizers", [cut])
        known = ({"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"})
        return cls(tokenizer) if cuts and all(cut in known for cut in cuts) else None

    def cut(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """The pieces of each text. Raises UnicodeEncodeError for half of a surrogate pair."""
        if not texts:
            return
        joined = NEXT.join(texts)
        if EDGE in joined or joined.count(NEXT) != len(texts) - 1:  # of the texts themselves
            yield from map(self._alone, texts)
            return
        normal = self._normalized(joined)
        self._learn(set(normal) - self._seen)
        for one, instead in self._edges.items():
            normal = normal.replace(one, instead)
        for text in normal.split(NEXT):
            yield [piece for piece in text.split(EDGE) if piece]

    def count(self, texts: Iterable[str]) -> Counter[str]:
        """How often each piece occurs. Raises UnicodeEncodeError as `cut`."""
        remaining, pieces, words = iter(texts), Counter[str](), _Words()
        while some := list(islice(remaining, AT_ONCE)):
            words.add(some)
            if len(words.names) > MAX_WORDS:
                pieces.update(self._of_words(words))
                words = _Words()
        pieces.update(self._of_words(words))
        return pieces

    def _of_words(self, words: _Words) -> Counter[str]:
        """The pieces of words; those that are equally frequent are cut as one text."""
        by_count: dict[int, list[str]] = {}
        for word, count in zip(words.names, words.counts.tolist(), strict=True):
            by_count.setdefault(count, []).append(word)
        found = Counter[str]()
        texts = [" ".join(several) for several in by_count.values()]
        for count, pieces in zip(by_count, self.cut(texts), strict=True):
            for piece, times in Counter(pieces).items():
                found[piece] += count * times
        return found

    def _normalized(self, text: str) -> str:
        if self._normal is not None:
            return str(self._normal.normalize_str(text))
        return text

    def _learn(self, characters: Iterable[str]) -> None:
        """Ask the tokenizer what it does at these characters."""
        for one in characters:
            self._seen.add(one)
            pieces = len(self._asked(f"a{one}a"))
            if one != NEXT and pieces > 1:
                self._edges[one] = EDGE if pieces == 2 else EDGE + one + EDGE

    def _alone(self, text: str) -> list[str]:
        return self._asked(self._normalized(text))

    def _asked(self, text: str) -> list[str]:
        return [piece for piece, _ in self._cut.pre_tokenize_str(text)]


class _Words:
    """Words, and how often each has occurred. A word may be there twice, and a text that the table
    of words does not take counts as a word."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.counts = np.zeros(0, np.int64)
        self._table = word_table(self._number, True, None)

    def add(self, texts: list[str]) -> None:
        table = self._table
        ids, _ = flattened(self._number(texts)) if table is None else table.encode(texts)
        counts = np.bincount(ids, minlength=len(self.names))
        counts[: len(self.counts)] += self.counts
        self.counts = counts

    def _number(self, new: list[str]) -> list[list[int]]:
        """The next numbers, for words that are new."""
        first = len(self.names)
        self.names += new
        return [[number] for number in range(first, len(self.names))]


def most_frequent(counts: Counter[str], least: int) -> Iterator[str]:
    """The pieces that occur at least so often, the most frequent first; equally frequent ones in
    the order of their characters."""
    kept = sorted(piece for piece, count in counts.items() if count >= least)
    return iter(sorted(kept, key=counts.__getitem__, reverse=True))
