"""CSV: cells separated by commas, in double quotes where they hold commas, quotes or line breaks.

After RFC 4180. A quote inside a cell that does not begin with one is an ordinary character.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

from transduce.errors import DataError


def csv_records(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """The line in which each record begins, and its cells; empty lines are skipped.

    `lines` come without their ends. Raises DataError, with the line, for a quote that is not
    closed, or that is followed by anything but a comma, and for a record that has more or fewer
    cells than the first.
    """
    reader = csv.reader((f"{line}\n" for line in lines), strict=True)
    width = 0
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{name}:{line}: {problem_of(error)}") from None
        if not cells:
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise DataError(f"{name}:{line}: {wrong_width(len(cells), width)}")
        yield line, cells


def wrong_width(cells: int, width: int) -> str:
    """A comma in a cell without quotes would shift all cells behind it."""
    return (
        f"the line has {cells} {'column' if cells == 1 else 'columns'} (separated by commas), but "
        f"the first has {width}; put a cell that holds a comma in double quotes"
    )


def problem_of(error: csv.Error) -> str:
    """What is wrong with a record, and how to mend it."""
    if "expected after" in str(error):
        return "a closing quote is followed by text, not by a comma; double the quotes in a cell"
    if "end of data" in str(error):
        return "a quote that begins here is not closed; close it, or double it inside quotes"
    if "field larger" in str(error):
        limit = csv.field_size_limit()
        return (
            f"a cell that begins here has more than {limit:,} characters; is a quote not closed? "
            f"Close it, or split the cell"
        )
    return f"this is not valid CSV ({error})"
