"""Tables with one word and its tag in each row, as data sets of named entities often are.

Which rows are a sentence, a column of sentence numbers says (in each row, or only in the first of a
sentence), or empty lines, or else punctuation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

from transduce.data.text.columns import csv_records, first_line
from transduce.data.text.files import read_lines

LOOKED_AT = 4000  # rows
FEWEST = 60  # rows
SENTENCES = 8  # at least so many of them among those rows
LENGTHS = (2.5, 200.0)  # words of a sentence, in the mean
SINGLE = 0.99  # of the cells of a column of words have no space in them
FILLED = 0.95  # of the cells of a column of tags
MAX_TAGS = 300
ENDS = frozenset((".", "!", "?", "...", "。", "！", "？", "؟", "।", "…"))
ENDING = 0.01  # of the words end a sentence, where nothing else says so
REPEATED = 0.7  # different words among all: a lexicon has each once
NAMES = ("word", "words", "token", "tokens", "form", "text")


@dataclass(frozen=True)
class WordRows:
    """Where the words and their tags are."""

    names: list[str]
    """Of the columns; made up where there is no header."""
    header: bool
    word: int
    tags: list[int]
    sentence: int | None
    """The column of sentence numbers."""
    empty_lines: bool
    """Where there is no such column: whether empty lines end sentences, and not punctuation."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns that a table of sentences has."""
        return [self.names[place] for place in self.places]

    @property
    def places(self) -> list[int]:
        """The words, and then the last tags first: what they are there for is usually last."""
        return [self.word, *reversed(self.tags)]

    @property
    def ends(self) -> str:
        """How sentences are told apart, in words."""
        if self.sentence is not None:
            return f"{self.names[self.sentence]} tells sentences apart"
        return f"a sentence ends with {'an empty line' if self.empty_lines else '. ! or ?'}"


def word_rows(path: Path, kind: str, expected: str = "") -> WordRows | None:
    """What a table (csv or tsv) of words and their tags is; None: it is another one.

    expected: the name of the column of words, for a model that was trained on such a table: this
    one may be short, without tags, and one sentence.
    """
    numbered = list(islice(_records(path, kind), LOOKED_AT))
    records = [cells for _, cells in numbered]
    if not records or (not expected and (len(records) <= FEWEST or len(records[0]) < 2)):
        return None
    header = first_line(records[0], records[1:]).is_header or expected in records[0]
    rows = records[header:]
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        return None
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = [cell.strip() for cell in records[0]] if header else _numbered(len(columns))
    places = range(len(columns))
    words = [place for place in places if _are_words(columns[place], bool(expected))]
    words.sort(key=lambda place: names[place].lower() not in NAMES)
    if expected and len(columns) > 1:
        words = [place for place in words if names[place] == expected]
    fewest = 1 if expected else SENTENCES
    sentence = next((place for place in places if _are_numbers(columns[place], fewest)), None)
    word = next((place for place in words if place != sentence), None)
    if word is None:
        return None
    different = len({*columns[word]})
    tags = [
        place
        for place in places
        if place not in (word, sentence) and _are_tags(columns[place], different)
    ]
    numbers = [number for number, _ in numbered[header:]]
    empty = sum(after - before > 1 for before, after in pairwise(numbers))
    empty_lines = empty >= fewest and _is_usual(len(rows) / empty)
    apart = sentence is not None or empty_lines or _has_ends(columns[word])
    if not expected and not (tags and apart):
        return None
    return WordRows(names, header, word, tags, sentence, empty_lines)


def sentences(path: Path, kind: str, found: WordRows) -> Iterator[list[str]]:
    """The words of each sentence and their tags, by column, joined by spaces; a row without a word
    is left out, and a word without a tag has the tag _."""
    held: list[list[str]] = []
    for begins, cells in _marked(path, kind, found):
        if begins and held:
            yield _joined(held)
            held = []
        row = ["_".join(cells[place].split()) for place in found.places]
        if row[0]:
            held.append([row[0], *(cell or "_" for cell in row[1:])])
    if held:
        yield _joined(held)


def _marked(path: Path, kind: str, found: WordRows) -> Iterator[tuple[bool, list[str]]]:
    """Each row, and whether a sentence begins there."""
    last, line, ended = "", 0, False
    for number, cells in islice(_records(path, kind), int(found.header), None):
        if found.sentence is not None:
            new = cells[found.sentence].strip() or last
            yield new != last, cells
            last = new
        elif found.empty_lines:
            yield number - line > 1, cells
            line = number
        else:
            yield ended, cells
            ended = cells[found.word].strip() in ENDS


def _joined(rows: Sequence[Sequence[str]]) -> list[str]:
    return [" ".join(cells) for cells in zip(*rows, strict=True)]


def _records(path: Path, kind: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, by the number of their line."""
    lines = read_lines(path.name, str(path.parent), table=True)
    if kind == "csv":
        return csv_records(lines, path.name)
    numbered = enumerate(lines, start=1)
    return ((number, line.split("\t")) for number, line in numbered if line.strip())


def _numbered(count: int) -> list[str]:
    return [f"column{place}" for place in range(count)]


def _are_words(cells: Sequence[str], unmarked: bool) -> bool:
    """Single words and not mostly numbers, punctuation among them or, of few, `unmarked`."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    single = sum(len(cell.split()) == 1 for cell in filled)
    letters = sum(any(map(str.isalpha, cell)) for cell in filled)
    marks = sum(not any(map(str.isalnum, cell)) for cell in filled)
    return (
        len(filled) >= FILLED * len(cells)
        and single >= SINGLE * len(filled)
        and 2 * letters > len(filled)
        and (marks > 0 or unmarked)
    )


def _are_numbers(cells: Sequence[str], fewest: int) -> bool:
    """Sentence numbers: each in all rows of its sentence, one after the other, or in the first."""
    values = [cell.strip() for cell in cells]
    filled = [value for value in values if value]
    if not all(any(map(str.isdigit, value)) for value in filled):
        return False
    if len(filled) < len(values):  # of the first word alone
        runs = filled
    else:
        runs = [value for before, value in pairwise(["", *values]) if value != before]
    return len({*runs}) == len(runs) >= fewest and _is_usual(len(values) / len(runs))


def _is_usual(length: float) -> bool:
    """Of sentences, in the mean."""
    return LENGTHS[0] <= length <= LENGTHS[1]


def _are_tags(cells: Sequence[str], words: int) -> bool:
    """Of few kinds, and without spaces."""
    values = [cell.strip() for cell in cells]
    filled = [value for value in values if value]
    kinds = {*filled}
    return (
        len(filled) >= FILLED * len(values)
        and 1 < len(kinds) <= MAX_TAGS
        and 2 * len(kinds) < words
        and not any(" " in kind for kind in kinds)
        and any(any(map(str.isalpha, kind)) for kind in kinds)
    )


def _has_ends(words: Iterable[str]) -> bool:
    """Whether words are those of running text, whose sentences end with punctuation."""
    found = [word.strip() for word in words]
    ends = sum(word in ENDS for word in found)
    return ends >= max(SENTENCES, ENDING * len(found)) and len({*found}) <= REPEATED * len(found)
