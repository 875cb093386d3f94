"""CoNLL with few columns, the usual format of named entities: a word and its tag in each line.

Tabs or spaces separate the columns; an empty line ends a sentence. Lines of -DOCSTART- and comments
are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
