"""CoNLL-U: sentences of words with columns; read, and written back with one column filled.

https://universaldependencies.org/format.html. Lines of a sentence: comments (#), words (1, 2, …),
multiword tokens (1-2), empty nodes (1.1). The words are tagged; everything else is kept unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.errors import DataError

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
    return str(path).removesuffix(".gz").removesuffix(".xz").endswith(".conllu")


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
