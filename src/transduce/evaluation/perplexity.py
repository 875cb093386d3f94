"""How surprised a language model is by a text: perplexity, and bits for each character and byte.

The protocol. The text is cut into tokens as for training, and each token is predicted once, by the
windows of decoding/score/context.py: a window holds as many tokens as a block of training and
begins half a block after the one before it, so every token has at least half a block of text before
it, but for those at the very beginning. The sum of −log p over all tokens, divided by the number of
tokens, of characters or of UTF-8 bytes, is what is reported; the last two can be compared between
models with different tokens. Where lines are texts of their own, the end of each is predicted too,
and counts as the character (and byte) that breaks the line.

The loss of validation, and `loss` here, is simpler: blocks one after the other, each from nothing
on, the mean over all tokens. It is higher, as the first tokens of every block have little before
them.
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
from transduce.evaluation.metrics import HIGHER_IS_BETTER, Metric


@dataclass(frozen=True)
class Given:
    """A text that is to be predicted: its tokens, and how long it is whatever they are."""

    texts: Sequence[NDArray[np.int32]]
    """One running text, or texts that end."""
    characters: int
    bytes: int

    @property
    def tokens(self) -> int:
        return sum(len(text) for text in self.texts)

    @property
    def unknown(self) -> int:
        return sum(int((text == UNKNOWN).sum()) for text in self.texts)


def given_text(pairs: Iterable[Pair], tokens: Tokens, running: bool) -> Given:
    """The lines of a corpus as a language model is asked for them."""
    listed = list(pairs)
    lines = [pair.target for pair in listed]
    breaks = 0 if running else len(lines)
    if running:
        ids = tokens.encode_lines([(pair.target, pair.line == 1) for pair in listed])
        texts = [np.fromiter((token for line in ids for token in line), np.int32)]
    else:
        texts = [np.array([*line, END], np.int32) for line in tokens.encode_batch(lines)]
    return Given(
        texts,
        characters=sum(map(len, lines)) + breaks,
        bytes=sum(len(line.encode("utf-8")) for line in lines) + breaks,
    )


def in_blocks(given: Given, size: int) -> list[NDArray[np.int32]]:
    """Texts cut every so many tokens: read apart, each piece begins with nothing before it."""
    return [text[at : at + size] for text in given.texts for at in range(0, len(text), size)]


def metrics_of(names: Sequence[str], total: float, given: Given, window: int) -> dict[str, Metric]:
    """The named metrics of a text whose tokens together have −log p of `total`."""
    bits = total / math.log(2)
    values = {
        "perplexity": perplexity(-total, given.tokens),
        "bits_per_character": bits / max(given.characters, 1),
        "bits_per_byte": bits / max(given.bytes, 1),
    }
    details = {
        "tokens": given.tokens,
        "characters": given.characters,
        "bytes": given.bytes,
        "unknown_tokens": given.unknown,
        "window": window,
        "stride": stride(window),
    }
    return {
        name: Metric(name, values[name], None, None, HIGHER_IS_BETTER[name], dict(details))
        for name in dict.fromkeys(names)
    }
