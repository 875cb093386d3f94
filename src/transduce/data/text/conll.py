"""CoNLL: sentences of words with columns, one word a line, an empty line after each sentence.

With few columns, the usual format of named entities: a word and its tag, with tabs or spaces
between them. Lines of -DOCSTART- and comments are skipped.

CoNLL-U (https://universaldependencies.org/format.html) is read, and written back with one column
filled. Lines of a sentence: comments (#), words (1, 2, …), multiword tokens (1-2), empty nodes
(1.1). The words are tagged; everything else is kept unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.data.text.files import suffix_of
from transduce.errors import DataError

DOCUMENT = "-DOCSTART-"


def read_conll(
    lines: Iterable[str], name: str, wanted: Sequence[int]
) -> Iterator[tuple[int, list[str]]]:
    """The first line of each sentence, and its wanted columns, joined by spaces.

    Raises DataError for a line that has more or fewer columns than the first.
    """
    first, width = 0, 0
    sentence: list[list[str]] = []
    for number, line in enumerate(lines, start=1):
        cells = _cells(line)
        if cells and cells[0] == DOCUMENT:
            continue
        if not cells:
            if sentence:
                yield first, _columns(sentence, wanted)
            sentence = []
            continue
        if line.startswith("#") and len(cells) != (width or 2):
            continue  # a comment; a word # has its tag
        width = width or len(cells)
        where = f"{name}:{number}"
        if len(cells) != width:
            noun = "column" if len(cells) == 1 else "columns"
            raise DataError(
                f"{where}: the line has {len(cells)} {noun}, but the first has {width}; write a "
                f"word and its tag in each line, separated by a tab or a space, and an empty line "
                f"after each sentence"
            )
        if max(wanted) >= width:
            raise DataError(
                f"{where}: the line has {width} {'column' if width == 1 else 'columns'} (separated "
                f"by tabs or spaces), but column {max(wanted)} (counted from 0) is asked for; "
                f"correct the line or the number"
            )
        first = number if not sentence else first
        sentence.append(cells)
    if sentence:
        yield first, _columns(sentence, wanted)


def _cells(line: str) -> list[str]:
    if "\t" not in line:
        return line.split()
    # White space in a cell would make two words of one.
    return ["_".join(cell.split()) or "_" for cell in line.split("\t")] if line.strip() else []


def _columns(sentence: list[list[str]], wanted: Sequence[int]) -> list[str]:
    return [" ".join(cells[place] for cells in sentence) for place in wanted]


COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
WORD = re.compile(r"[1-9]\d*")
OTHER = re.compile(r"[1-9]\d*-[1-9]\d*|\d+\.[1-9]\d*")
TAGS = ("upos", "xpos")
UNSAID = "_"


@dataclass(frozen=True)
class Sentence:
    """The lines of a sentence, and which of them are words."""

    name: str
    line: int
    """Its first line, from 1."""
    lines: list[str]
    words: list[int]
    """Indices into `lines`."""

    def column(self, name: str) -> list[str]:
        """A column of each word, with inner white space as _. Raises DataError for a missing
        tag.
        """
        number = COLUMNS.index(name)
        found = []
        for place in self.words:
            value = "_".join(self.lines[place].split("\t")[number].split())
            if value == UNSAID and name in TAGS:
                raise DataError(
                    f"{self.name}:{self.line + place}: the word has no {name} (there is a _); "
                    f"fill it in, or use another column"
                )
            found.append(value)
        return found

    def filled(self, name: str, values: Sequence[str]) -> str:
        """The sentence with these values in a column of its words, and an empty line after it.

        If there are fewer values than words, the rest stays empty.
        """
        number = COLUMNS.index(name)
        lines = list(self.lines)
        for count, place in enumerate(self.words):
            fields = lines[place].split("\t")
            fields[number] = values[count] if count < len(values) else UNSAID
            lines[place] = "\t".join(fields)
        return "\n".join([*lines, "", ""])


def is_conllu(path: str | Path) -> bool:
    """Whether the file name says CoNLL-U, compressed or not."""
    return suffix_of(str(path)) == ".conllu"


def read_sentences(lines: Iterable[str], name: str) -> Iterator[Sentence]:
    """The sentences of a file called `name`. Raises DataError with the line that is wrong."""
    held: list[str] = []
    number = 0
    for number, line in enumerate(lines, start=1):
        if line.strip():
            held.append(line)
        elif held:
            yield _sentence(held, name, number - len(held))
            held = []
    if held:  # the format requires an empty line at the end; many files lack it
        yield _sentence(held, name, number - len(held) + 1)


def _sentence(lines: list[str], name: str, first: int) -> Sentence:
    words = []
    for place, line in enumerate(lines):
        if line.startswith("#"):
            continue
        where, fields = f"{name}:{first + place}", line.split("\t")
        if len(fields) != len(COLUMNS):
            raise DataError(
                f"{where}: {len(fields)} columns instead of the {len(COLUMNS)} of CoNLL-U, "
                f"separated by tabs"
            )
        if WORD.fullmatch(fields[0]):
            words.append(place)
            if fields[0] != str(len(words)):
                raise DataError(
                    f"{where}: the word has the number {fields[0]} where {len(words)} comes next; "
                    f"an empty line ends a sentence"
                )
        elif not OTHER.fullmatch(fields[0]):
            raise DataError(f"{where}: {fields[0]!r} is not a word number, such as 1, 1-2 or 1.1")
        if not fields[1].strip():
            raise DataError(f"{where}: the word has no form; write _ where there is none")
    if not words:
        raise DataError(f"{name}:{first}: there is no word in this sentence")
    return Sentence(name, first, lines, words)
