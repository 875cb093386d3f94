"""Which words of a translation belong to which of its source: by attention, or by position."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from transduce.decoding.output import Output
from transduce.inspection.analysis.alignment import word_attention

Span = tuple[int, int]
# Words and single punctuation marks; each character of scripts that are written without spaces.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0eff]|[^\W\u3040-\u9fff]+|[^\w\s]")


class Alignment(Protocol):
    """Says where the translation of a part of the source is."""

    target: str

    def find(self, start: int, end: int) -> Span:
        """The characters of the target for source characters start to end, whole words."""


class Proportional:
    """Words in the same order, evenly: what is left without attention."""

    def __init__(self, source: str, target: str) -> None:
        self.target = target
        self._source, self._target = words_of(source), words_of(target)

    def find(self, start: int, end: int) -> Span:
        inside = within(self._source, start, end)
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
        self._source, self._target = source_words, target_words
        self._weights_TS = weights_TS

    def find(self, start: int, end: int) -> Span:
        inside = within(self._source, start, end)
        if not inside or not self._target:
            return (len(self.target), len(self.target))
        places = [int(self._weights_TS[:, word].argmax()) for word in inside]
        # Those that attend to this part more than to any other word, if there are such.
        mutual = [t for t in places if int(self._weights_TS[t].argmax()) in inside]
        chosen = mutual or places
        return self._target[min(chosen)][0], self._target[max(chosen)][1]


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


def words_of(text: str) -> list[Span]:
    return [found.span() for found in WORD.finditer(text)]


def within(words: Sequence[Span], start: int, end: int) -> list[int]:
    """The words of which at least half is between start and end."""
    return [
        number
        for number, (first, last) in enumerate(words)
        if start <= (first + last) / 2 <= end and start < last and first < end
    ]


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
        inside = [number for number, at in enumerate(places) if first <= at < last]
        if not inside:  # part of a token that begins before it
            before = [number for number, at in enumerate(places) if at <= first]
            inside = before[-1:]
        if not inside:
            return None
        spans.append((inside[0], inside[-1] + 1))
    return spans
