"""Blocks for language models: running text cut into pieces of equal length, without padding.

The tokens of a text are not copied; a block is only a start and an end. A block has no END, as the
text continues after it. Every token is predicted once in an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from transduce.data.cache.tokenised import Encoded


@dataclass(frozen=True)
class Blocks(Encoded):
    """Rows that are blocks of one running text; `lines` are the lines in which they begin."""

    whole: ClassVar[bool] = False


def cut(text: Encoded, length: int, start: int = 0) -> Blocks:
    """The text from token `start` on, in blocks of `length` tokens; the last one may be shorter.

    Row i of `text` is its line i; `numbers` are the indices of those lines.
    """
    size = len(text.target_ids)
    offsets = np.append(np.arange(start, size, length), size).astype(np.int64)
    line_of = np.searchsorted(text.target_offsets, offsets[:-1], side="right") - 1
    return Blocks(
        source_ids=text.source_ids,
        source_offsets=np.zeros(len(offsets), np.int64),
        target_ids=text.target_ids,
        target_offsets=offsets,
        lines=text.lines[line_of],
        numbers=text.numbers[line_of],
    )


def cut_anywhere(text: Encoded, length: int, random: np.random.Generator) -> Blocks:
    """Blocks from a random offset on, so that each epoch is cut differently.

    The remainders at both ends, less than two blocks, are left out in this epoch.
    """
    size = len(text.target_ids)
    if size <= length:
        return cut(text, length)
    start = int(random.integers(min(length, size - length + 1)))
    whole = (size - start) // length
    end = start + whole * length
    return cut(_first(text, end), length, start)


def _first(text: Encoded, size: int) -> Encoded:
    """The text up to its first `size` tokens."""
    return Encoded(**{**vars(text), "target_ids": text.target_ids[:size]})
