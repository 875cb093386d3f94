"""Split paragraphs into phrases of a length that suits speech recognition."""

from __future__ import annotations

import re
import unicodedata

LONGEST = 100  # letters
WIDE = 4  # characters that a Chinese character, or a kana, counts for

# Punctuation after which a phrase may end: of sentences, then within sentences.
STRONG = re.compile(r"(?<=[.!?;:。！？；：।॥؟؛۔።፤։])\s*")
WEAK = re.compile(r"(?<=[,，、،፣·‧])\s*")
HYPHENS = str.maketrans({"\u2010": "-", "\u2011": "-", "\u00ad": "", "\u200b": ""})


def phrases(paragraph: str, longest: int = LONGEST) -> list[str]:
    """A paragraph split after its sentences and, if these are long, after commas.

    Neighbours are merged again as long as they stay within `longest`; a phrase without a comma may
    be longer.
    """
    text = " ".join(paragraph.translate(HYPHENS).split())
    found: list[str] = []
    for sentence in _pieces(STRONG, text):
        parts = [sentence] if length(sentence) <= longest else _pieces(WEAK, sentence)
        start = len(found)
        for part in parts:
            apart = "" if length(part) > len(part) else " "  # such scripts have no spaces
            if len(found) > start and length(found[-1]) + length(part) < longest:
                found[-1] += apart + part
            else:
                found.append(part)
    return found


def length(text: str) -> int:
    """The length in characters of an alphabet."""
    return sum(WIDE if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _pieces(cut: re.Pattern[str], text: str) -> list[str]:
    """With at least two letters each: "1." and "e.g." are not phrases of their own."""
    found: list[str] = []
    for piece in cut.split(text):
        if found and sum(map(str.isalpha, found[-1])) < 2:
            found[-1] += " " + piece
        elif any(map(str.isalnum, piece)):
            found.append(piece)
        elif found:
            found[-1] += piece
    return found
