"""Whether a TSV or CSV file begins with a header, where no column is named; and columns of ids.

It is one where a column of numbers begins with a word, or where all its cells are usual names of
columns. Where only some are, it is read as data, and a sentence says so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LOOKED_AT = 50  # rows after the first line
SHOWN = 5  # cells of a line in a message
LONGEST_NAME = 40  # characters of a column name
FEWEST = 2  # rows of numbers that tell their first cell from them

# Whole words only: a name such as source_text is split first.
_USUAL = (
    "id ids idx index no nr number row line key uuid guid name title "
    "src source sources tgt trg target targets input inputs output outputs in out "
    "text texts sentence sentences sent segment phrase question answer query prompt response "
    "word words token tokens lemma lemmas form forms inflected feature features feats tag tags "
    "pos upos xpos ner entity entities "
    "grapheme graphemes phoneme phonemes phone phones pronunciation ipa spelling "
    "label labels class classes category sentiment score rating stars "
    "translation translations reference references ref hypothesis summary document article "
    "audio path file filename wav duration seconds start end speaker group split "
    "transcript transcription language lang locale code date time author user url "
    "arabic basque bengali bulgarian catalan chinese croatian czech danish dutch english estonian "
    "finnish french german greek hebrew hindi hungarian icelandic indonesian irish italian "
    "japanese korean latin latvian lithuanian norwegian persian polish portuguese romanian russian "
    "serbian slovak slovenian spanish swahili swedish tamil thai turkish ukrainian urdu vietnamese "
    "welsh"
)
NAMES = frozenset(_USUAL.split())
NUMBER = re.compile(r"\s*[-+]?\d+([.,]\d+)?\s*")
COUNTED = re.compile(r"(\D*)(\d{1,15})")
UUID = re.compile(r"[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class FirstLine:
    """What the first line is taken for."""

    is_header: bool
    unsure: bool = False
    """Whether it is read as data, but may be a header."""

    def sentence(self, name: str, cells: Sequence[str], if_data: str, if_header: str) -> str:
        """What was assumed of a file, and how to say otherwise; empty where it is clear."""
        line = f"{name}:1: the first line ({_shown(cells)}) is read as"
        if self.is_header:
            return f"{line} a header; if it is data, {if_data}"
        return f"{line} data; if it is a header, {if_header}" if self.unsure else ""


def first_line(first: Sequence[str], following: Sequence[Sequence[str]]) -> FirstLine:
    """Whether the first record is a header, by its cells and the first of those that follow."""
    cells = [cell.strip() for cell in first]
    if not all(cells) or len({cell.lower() for cell in cells}) < len(cells):
        return FirstLine(False)  # a header names each column, each otherwise
    if any(NUMBER.fullmatch(cell) or len(cell) > LONGEST_NAME for cell in cells):
        return FirstLine(False)
    for place in range(len(cells)):
        column = [row[place] for row in following if place < len(row)]
        if len(column) >= FEWEST and all(NUMBER.fullmatch(cell) for cell in column):
            return FirstLine(True)
    usual = sum(map(_is_usual_name, cells))
    return FirstLine(usual == len(cells), 0 < usual < len(cells))


def _is_usual_name(cell: str) -> bool:
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", cell).lower()
    found = re.findall(r"[^\W\d_]+", words)
    return bool(found) and len(found) <= 3 and all(word in NAMES for word in found)


def _shown(cells: Sequence[str]) -> str:
    """The cells of a line, in a message."""
    short = [cell if len(cell) <= 20 else f"{cell[:19]}…" for cell in cells[:SHOWN]]
    return ", ".join(short) + (", …" if len(cells) > SHOWN else "")


class IdWatch:
    """Notices a column whose texts are row numbers or ids: 1, 2, 3 or utt-007, utt-008, or UUIDs.

    Numbers that are the task itself, such as 4 1 2 to be sorted, do not count upwards.
    """

    MOST = 1000  # rows that are looked at
    LEAST = 4
    SHARE = 0.9

    def __init__(self) -> None:
        self.rows = self.counted = self.unique = 0
        self._before: tuple[str, int] | None = None

    def add(self, text: str) -> None:
        """Look at the cell of one more row."""
        if self.rows >= self.MOST:
            return
        self.rows += 1
        found = COUNTED.fullmatch(text.strip())
        now = (found[1], int(found[2])) if found else None
        before, self._before = self._before, now
        if now and before and now == (before[0], before[1] + 1):
            self.counted += 1
        self.unique += UUID.fullmatch(text.strip()) is not None

    @property
    def found(self) -> bool:
        """Whether the rows so far are ids."""
        enough = self.rows >= self.LEAST
        return enough and max(self.counted + 1, self.unique) >= self.SHARE * self.rows
