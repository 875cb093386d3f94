"""Where words begin and end among tokens: what tells a hotword from a part of a longer word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from transduce.data.text.unicode import UNSPACED
from transduce.data.tokens.learn import SPECIALS

# A byte of a character that is cut between tokens: most such characters are letters.
_PART_OF_A_CHARACTER = re.compile(r"<[89A-F][0-9A-F]>")


class WordEdges(NamedTuple):
    """Of each token of a vocabulary."""

    begins_V: NDArray[np.bool_]
    """Whether it begins with something else than a letter or digit, such as a space: a word that
    was written before it is over."""
    inside_V: NDArray[np.bool_]
    """Whether it ends with a letter or digit, so that the next token may go on with the word."""

    @classmethod
    def of(cls, pieces: Sequence[str], whole_words: bool, silent: Sequence[int]) -> WordEdges:
        """pieces: the tokens as they are shown, ▁ for a space. whole_words: whether each is a word.
        silent: tokens without text, such as tags."""
        begins_V, inside_V = np.ones(len(pieces), bool), np.zeros(len(pieces), bool)
        if whole_words:
            return cls(begins_V, inside_V)
        for number, piece in enumerate(pieces):
            if number >= len(SPECIALS) and piece:
                begins_V[number] = not _is_inner(piece, first=True)
                inside_V[number] = _is_inner(piece, first=False)
        begins_V[list(silent)], inside_V[list(silent)] = True, False
        return cls(begins_V, inside_V)


def _is_inner(piece: str, first: bool) -> bool:
    """Whether a piece begins, or ends, with a character of a word."""
    part = _PART_OF_A_CHARACTER.match(piece) if first else _PART_OF_A_CHARACTER.match(piece[-4:])
    if part is not None:
        return True
    letter = piece[0] if first else piece[-1]
    # Marks, such as accents, belong to the letter before them.
    inner = letter.isalnum() or category(letter).startswith("M")
    return inner and not UNSPACED.match(letter)
