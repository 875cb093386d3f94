"""Which words of a translation belong to which of its source: by attention, or by position."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from transduce.decoding.output import Output

Span = tuple[int, int]
"""Where something begins and ends, among characters or tokens."""
# Words and single punctuation marks; each character of scripts that are written without spaces.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff]|[^\W\u3040-\u9fff]+|[^\w\s]")


class Alignment(Protocol):
    """Says where the translation of a part of the source is."""

    target: str

    def find(self, start: int, end: int) -> Span:
        """The characters of the target for source characters start to end, whole words."""


class Words:
    """The words of a text; those within a part of it are found without a look at the others."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self._firsts = [first for first, _ in spans]
        self._lasts = [last for _, last in spans]
        self._middles = [(first + last) / 2 for first, last in spans]

    def __len__(self) -> int:
        return len(self.spans)

    def within(self, start: int, end: int) -> range:
        """The words of which at least half is between start and end."""
        low = max(bisect_left(self._middles, start), bisect_right(self._lasts, start))
        high = min(bisect_right(self._middles, end), bisect_left(self._firsts, end))
        return range(low, max(low, high))


class Proportional:
    """Words in the same order, evenly: what is left without attention."""

    def __init__(self, source: str, target: str) -> None:
        self.target = target
        self._source, self._target = Words(words_of(source)), words_of(target)

    def find(self, start: int, end: int) -> Span:
        inside = self._source.within(start, end)
        if not inside or not self._target:
            return (len(self.target), len(self.target))
        ratio = len(self._target) / len(self._source)
        last = len(self._target) - 1
        first = min(round(inside[0] * ratio), last)
        final = min(max(round((inside[-1] + 1) * ratio) - 1, first), last)
        return self._target[first][0], self._target[final][1]


class ByAttention:
    """For each source word the target word that attends to it most."""

    def __init__(
        self,
        target: str,
        source_words: Sequence[Span],
        target_words: Sequence[Span],
        weights_TS: NDArray[np.float64],
    ) -> None:
        self.target = target
        self._source, self._target = Words(source_words), target_words
        if weights_TS.size:
            self._place_S = weights_TS.argmax(axis=0)
            # The source word that this target word attends to most.
            self._back_S = weights_TS.argmax(axis=1)[self._place_S]

    def find(self, start: int, end: int) -> Span:
        inside = self._source.within(start, end)
        if not inside or not self._target:
            return (len(self.target), len(self.target))
        places = self._place_S[inside.start : inside.stop]
        back = self._back_S[inside.start : inside.stop]
        # Those that attend to this part more than to any other word, if there are such.
        mutual = places[(inside.start <= back) & (back < inside.stop)]
        chosen = mutual if len(mutual) else places
        return self._target[chosen.min()][0], self._target[chosen.max()][1]


def alignment_of(source: str, output: Output) -> Alignment:
    """By the attention of an output, if it has it and its tokens are found in the texts."""
    if output.attention is None:
        return Proportional(source, output.text)
    weights_TS = output.attention.mean(axis=(0, 1)).astype(np.float64)
    sides = []
    for text, tokens in ((source, output.source_tokens), (output.text, output.tokens)):
        words = words_of(text)
        spans = token_spans(text, tokens, words)
        if spans is None:
            return Proportional(source, output.text)
        sides.append((words, spans))
    (source_words, source_spans), (target_words, target_spans) = sides
    return ByAttention(
        output.text,
        source_words,
        target_words,
        word_attention(weights_TS, source_spans, target_spans),
    )


def word_attention(
    weights_TS: ArrayLike, source_words: Sequence[Span], target_words: Sequence[Span]
) -> NDArray[np.float64]:
    """Attention between words [target words, source words], of attention between their tokens.

    What a word has is the sum over its tokens; what it pays is the average over them.
    """
    given_TS = np.asarray(weights_TS, np.float64)
    shares = _members(target_words, len(given_TS))
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
    found: NDArray[np.float64] = shares @ given_TS @ _members(source_words, given_TS.shape[1]).T
    return found


def _members(words: Sequence[Span], tokens: int) -> NDArray[np.float64]:
    """1 where a token belongs to a word, [words, tokens]."""
    starts, ends = np.asarray(words, np.int64).reshape(-1, 2, 1).transpose(1, 0, 2)
    places = np.arange(tokens)
    return ((starts <= places) & (places < ends)).astype(np.float64)


def words_of(text: str) -> list[Span]:
    return [found.span() for found in WORD.finditer(text)]


def token_spans(text: str, tokens: Sequence[str], words: Sequence[Span]) -> list[Span] | None:
    """The tokens of each word, one at least; None where the tokens are not found in the text."""
    places: list[int] = []
    place = 0
    for token in tokens[:-1]:  # without END
        bare = token.replace("▁", " ").strip()
        found = text.find(bare, place)
        if found < 0:
            return None
        places.append(found)
        place = found + len(bare)
    spans = []
    for first, last in words:
        begin, end = bisect_left(places, first), bisect_left(places, last)
        if begin == end:  # part of a token that begins before it
            begin = end - 1
        if begin < 0:
            return None
        spans.append((begin, max(end, begin + 1)))
    return spans
