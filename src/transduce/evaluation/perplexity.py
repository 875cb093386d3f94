"""Perplexity of a language model, and bits per character and per byte.

The protocol is a sliding window. The text is tokenised as for training, and each token is predicted
once, by the windows of decoding/score/context.py: a window holds as many tokens as a block of
training and begins half a block after the one before it, so every token has at least half a block
of context, except at the very beginning. The negative log-likelihood of all tokens, divided by the
number of tokens, of characters or of UTF-8 bytes, is reported; the last two can be compared between
models with different tokenizers. If lines are separate texts, the end of each is predicted too, and
counts as one character (and byte), the line break.

The loss of validation, and `loss` here, is simpler: consecutive blocks, each without context, and
the mean over all tokens. It is higher, as the first tokens of every block have little context.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transduce.data.text.pairs import Pair
from transduce.data.tokens.tokenizer import END, UNKNOWN, Tokens
from transduce.decoding.output import perplexity
from transduce.decoding.score.context import stride
from transduce.evaluation.bootstrap import Score, Statistics
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import HIGHER_IS_BETTER, Measured, Metric
from transduce.tasks import LanguageModel


def _bits_per(column: int) -> Score:
    def score(total: Statistics) -> float:
        return float(total[0] / math.log(2) / max(total[column], 1.0))

    return score


#: Of −log p, and the numbers of tokens, characters and bytes.
SCORES: dict[str, Score] = {
    "perplexity": lambda total: perplexity(-float(total[0]), int(total[1])),
    "bits_per_character": _bits_per(2),
    "bits_per_byte": _bits_per(3),
}


@dataclass(frozen=True)
class ScoredText:
    """A text to score: its tokens, and its length in characters and bytes."""

    texts: Sequence[NDArray[np.int32]]
    """One running text, or separate texts."""
    characters: int
    bytes: int

    @property
    def tokens(self) -> int:
        return sum(len(text) for text in self.texts)

    @property
    def unknown(self) -> int:
        return sum(int((text == UNKNOWN).sum()) for text in self.texts)


def text_to_score(pairs: Iterable[Pair], tokens: Tokens, running: bool) -> ScoredText:
    """The lines of a corpus as texts for a language model to score."""
    listed = list(pairs)
    lines = [pair.target for pair in listed]
    breaks = 0 if running else len(lines)
    if running:
        ids = tokens.encode_lines([(pair.target, pair.line == 1) for pair in listed])
        texts = [np.fromiter((token for line in ids for token in line), np.int32)]
    else:
        texts = [np.array([*line, END], np.int32) for line in tokens.encode_batch(lines)]
    return ScoredText(
        texts,
        characters=sum(map(len, lines)) + breaks,
        bytes=sum(len(line.encode("utf-8")) for line in lines) + breaks,
    )


def in_blocks(scored: ScoredText, size: int) -> list[NDArray[np.int32]]:
    """Texts cut into blocks of `size` tokens, each of which is scored without context."""
    return [text[at : at + size] for text in scored.texts for at in range(0, len(text), size)]


def metrics_of(
    names: Sequence[str], total: float, scored: ScoredText, window: int
) -> dict[str, Metric]:
    """The named metrics of a text with the negative log-likelihood `total`."""
    statistics = np.array([total, scored.tokens, scored.characters, scored.bytes])
    details = {
        "tokens": scored.tokens,
        "characters": scored.characters,
        "bytes": scored.bytes,
        "unknown_tokens": scored.unknown,
        "window": window,
        "stride": stride(window),
    }
    return {
        name: Metric(
            name, SCORES[name](statistics), None, None, HIGHER_IS_BETTER[name], dict(details)
        )
        for name in dict.fromkeys(names)
    }


def line_rows(
    model: LanguageModel, pairs: Sequence[Pair], running: bool, names: Sequence[str]
) -> dict[str, Measured]:
    """A row a line: its −log p, and how many tokens, characters and bytes it has.

    Lines of a running text are scored with the text before them.
    """
    scored = text_to_score(pairs, model.target_tokens, running)
    values = model.log_probabilities(scored.texts)
    if running:
        lines = [(pair.target, pair.line == 1) for pair in pairs]
        lengths = [len(ids) for ids in model.target_tokens.encode_lines(lines)]
        values = np.split(values[0], np.cumsum(lengths)[:-1])
    breaks = 0 if running else 1
    statistics = np.array(
        [
            [-of_line.sum(), len(of_line), len(text) + breaks, len(text.encode("utf-8")) + breaks]
            for of_line, text in zip(values, (pair.target for pair in pairs), strict=True)
        ]
    )
    details = {"tokens": scored.tokens, "unknown_tokens": scored.unknown}
    return {name: Measured(statistics, SCORES[name], dict(details)) for name in names}


def line_items(pairs: Sequence[Pair]) -> list[Item]:
    """The lines as items, each with its text as the source."""
    return [
        Item(text := pair.target.rstrip("\n"), [text], place=(pair.file, pair.line))
        for pair in pairs
    ]
