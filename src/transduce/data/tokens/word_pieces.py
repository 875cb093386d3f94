"""Texts cut into the pieces of a tokenizer of words or symbols, many at once.

Such a tokenizer decides about each character by itself: it is a space between pieces, or a piece of
its own (punctuation), or a part of one. It is asked about each character once; asking it about each
word takes some ten times longer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, repeat

import numpy as np
from tokenizers import Tokenizer

from transduce.data.tokens.words import Ids, Offsets, flattened, word_counts

EDGE, NEXT = "\x01", "\x02"  # between two pieces, and between two texts
NOTHING, END_OF_TEXT = -1, -2  # in place of ids: between two edges, and between two texts
AT_ONCE = 1024  # texts whose words are counted in one step


class WordPieces:
    """The pieces of texts, as the normalizer and the pre-tokenizer of a tokenizer make them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
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

    def encode(self, texts: Sequence[str], unknown: int) -> tuple[Ids, Offsets]:
        """The ids of each text, concatenated, and its offsets. Raises UnicodeEncodeError for half
        of a surrogate pair."""
        if not texts:
            return flattened([])
        cut = self._pieces(texts)
        if cut is None:
            known = self._numbers.get
            pieces = map(self._alone, texts)
            return flattened([[known(piece, unknown) for piece in one] for one in pieces])
        return _rows(np.fromiter(map(self._marked.get, cut, repeat(unknown)), np.int32, len(cut)))

    def count(self, texts: Iterable[str]) -> Counter[str]:
        """How often each piece occurs. Raises UnicodeEncodeError as `encode`."""
        remaining, found = iter(texts), Counter[str]()
        batches = iter(lambda: list(islice(remaining, AT_ONCE)), [])
        table = word_counts()
        if table is None:
            words = Counter(word for some in batches for word in " ".join(some).split(" "))
            self._add(found, list(words), np.fromiter(words.values(), np.int64, len(words)))
            return found
        for names, times in table.count(batches):
            self._add(found, names, times)
        return found

    def _add(self, found: Counter[str], words: list[str], times: Offsets) -> None:
        """Count the pieces of words that occur so often."""
        cut = self._pieces(words)
        if cut is None:
            for word, often in zip(words, times.tolist(), strict=True):
                for piece in self._alone(word):
                    found[piece] += often
            return
        numbers = {piece: number for number, piece in enumerate(dict.fromkeys(cut))}
        ids = np.fromiter(map(numbers.__getitem__, cut), np.int32, len(cut))
        of_word = np.cumsum(ids == numbers.get(NEXT, -1))
        sums = np.bincount(ids, times[of_word])  # in float64, which is exact here
        for piece, often in zip(numbers, sums.astype(np.int64).tolist(), strict=True):
            if piece not in ("", NEXT):
                found[piece] += often

    def _pieces(self, texts: Sequence[str]) -> list[str] | None:
        """The pieces of all texts, with NEXT between two texts, and nothing, "", here and there.
        None where a text has characters that stand for edges."""
        joined = NEXT.join(texts)
        if EDGE in joined or joined.count(NEXT) != len(texts) - 1:  # of the texts themselves
            return None
        normal = self._normalized(joined)
        self._learn(set(normal) - self._seen)
        for one, instead in self._edges.items():
            normal = normal.replace(one, instead)
        return normal.replace(NEXT, EDGE + NEXT + EDGE).split(EDGE)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        numbers: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=False)
        return numbers

    @cached_property
    def _marked(self) -> dict[str, int]:
        """The same, and what stands for what `_pieces` puts between pieces."""
        return self._numbers | {"": NOTHING, NEXT: END_OF_TEXT}

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


def _rows(marked: Ids) -> tuple[Ids, Offsets]:
    """Ids with END_OF_TEXT between two texts, and NOTHING here and there, as rows."""
    is_id = marked >= 0
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_id)])
    ends = np.flatnonzero(marked == END_OF_TEXT)
    return marked[is_id], np.concatenate([before[:1], before[ends], before[-1:]])


def most_frequent(counts: Counter[str], least: int) -> Iterator[str]:
    """The pieces that occur at least so often, the most frequent first; equally frequent ones in
    the order of their characters."""
    kept = sorted(piece for piece, count in counts.items() if count >= least)
    return iter(sorted(kept, key=counts.__getitem__, reverse=True))
