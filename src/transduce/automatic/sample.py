"""A bounded sample of a file: all of a small one, of a large one its beginning and stretches of it.

Fifty rows and fifty million take about the same time: nothing here reads more than a few megabytes.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any

from transduce.data.text.columns import (
    KEY_WITHIN,
    csv_records,
    text_of_value,
    value_of,
    without_header,
)
from transduce.data.text.files import read_lines
from transduce.data.text.parquet import load_pyarrow, opened_parquet, reason_of
from transduce.errors import DataError

WHOLE = 1 << 24  # bytes of a file that is read whole
BEGINNING = 1 << 20  # bytes of a larger one; of a compressed one, as many as of one that is whole
STRETCHES = 64  # places of a larger file that are read besides: it may be sorted
STRETCH = 1 << 18  # bytes of each
MEASURED = 1 << 22  # bytes of a compressed file by which its size is estimated
UNPACKED = 1 << 26  # bytes of a compressed file that are read, to look at lines of all of it
MAX_ROWS = 100_000  # rows of a table that are looked at


@dataclass(frozen=True)
class Lines:
    """Lines of a file, and how many it has."""

    lines: list[str]
    first: int
    """The lines of the beginning, whose numbers are known: from 1 in their order."""
    total: int
    """Exact where `whole`, else estimated from the size of the file."""
    whole: bool


def sample_lines(path: Path, stretches: bool = True) -> Lines:
    """Lines from all of a file, at most some megabytes. Raises DataError as reading it would.

    stretches: false reads the beginning alone, where lines belong together.
    """
    lines: list[str] = []
    size, length = 0, path.stat().st_size
    packed = path.suffix in (".gz", ".xz")
    apart = stretches and length > WHOLE and not packed
    # As training reads them: what cannot be decoded is an error with its line.
    found = read_lines(path.name, str(path.parent), table=True)
    for line in found:
        lines.append(line)
        size += _bytes(line)
        if size > (BEGINNING if apart else WHOLE):
            break
    else:
        if len(lines) == 1 and "\r" in lines[0]:
            raise DataError(
                f"{path.name} has one line, with old line ends in it (CR); convert it with "
                f"`tr '\\r' '\\n' < {path.name} > {path.stem}-lines{path.suffix}`"
            )
        return Lines(lines, len(lines), len(lines), True)
    first = len(lines)
    if packed:
        estimated = round(first * _unpacked(path) / size)
        if not stretches:
            return Lines(lines, first, estimated, False)
        return _thinned(lines, size, found, estimated)
    if not apart:
        return Lines(lines, first, round(first * length / size), False)
    read = 0  # bytes of the lines of the stretches: those of the beginning may be shorter
    with path.open("rb") as file:
        for number in range(STRETCHES):
            place = size + (length - size) * number // STRETCHES
            file.seek(place)
            parts = file.read(STRETCH).split(b"\n")[1:-1]  # the first and the last are cut
            read += sum(len(part) + 1 for part in parts)
            lines += [part.removesuffix(b"\r").decode("utf-8", "replace") for part in parts]
    rest = (length - size) * (len(lines) - first) / read if read else first * (length / size - 1)
    return Lines(lines, first, first + round(rest), False)


def _bytes(line: str) -> int:
    return len(line.encode("utf-8", "surrogatepass")) + 1


def _thinned(lines: list[str], size: int, rest: Iterator[str], estimated: int) -> Lines:
    """Of a compressed file, which cannot be read from the middle: its beginning, and every so many
    lines of the rest, so that a file that is sorted by label shows all of them."""
    first, step = len(lines), max(estimated // len(lines), 1)
    kept, total = lines[: max(first // step, 1)], first
    for number, line in enumerate(chain(lines[len(kept) :], rest), start=len(kept)):
        if number % step == 0:
            kept.append(line)
        if number >= first:
            total, size = number + 1, size + _bytes(line)
        if size > UNPACKED:
            return Lines(kept, max(first // step, 1), max(estimated, total), False)
    return Lines(kept, max(first // step, 1), total, False)


def _unpacked(path: Path) -> float:
    """The size of a compressed file once it is unpacked, estimated from its beginning."""
    packed = path.stat().st_size
    opened: Any = gzip.open if path.suffix == ".gz" else lzma.open
    with path.open("rb") as raw, opened(raw) as file:
        read = len(file.read(MEASURED))
        used = max(raw.tell(), 1)
    return packed * read / used


@dataclass(frozen=True)
class Table:
    """Rows of a table with columns, and how many it has."""

    format: str
    names: list[str] | None
    """The header; None: there is none, and columns have numbers."""
    rows: list[list[str]]
    total: int
    whole: bool
    notes: list[str] = field(default_factory=list)
    """What was assumed of the first line, and which columns are no text."""

    @property
    def width(self) -> int:
        return len(self.names) if self.names is not None else len(self.rows[0])

    def column(self, place: int) -> list[str]:
        return [row[place] for row in self.rows]

    def name_of(self, place: int) -> str | None:
        """The name of a column; None: it has none, or not one of its own, and has a number."""
        name = None if self.names is None else self.names[place]
        return name if name and self.names is not None and self.names.count(name) == 1 else None

    def header_for(self, keys: Iterable[object]) -> dict[str, bool]:
        """What a recipe says of the first line, which names or numbers of columns may not."""
        if self.format not in ("tsv", "csv"):
            return {}
        if self.names is None:
            return {"header": False}
        return {"header": True} if any(isinstance(key, int) for key in keys) else {}

    def different(self) -> Table:
        """Without rows that repeat another exactly."""
        return replace(self, rows=list({tuple(row): row for row in self.rows}.values()))


def sample_table(path: Path, kind: str, header: bool | None = None) -> Table:
    """Rows of TSV, CSV, JSONL or Parquet. Raises DataError, with the line, where rows differ."""
    if kind == "parquet":
        return _parquet(path)
    # A stretch may begin inside of a quoted cell of CSV.
    sample = sample_lines(path, stretches=kind != "csv")
    if kind == "jsonl":
        return _jsonl(path, sample)
    notes: list[str] = []
    advice = ("give data.train.header=false", "give data.train.header=true")
    if kind == "csv":
        records: Iterable[tuple[int, list[str]]] = csv_records(sample.lines, path.name)
        if not sample.whole:
            records = _until_error(records)
    else:
        records = _tab_records(path, sample)
    names, rest = without_header(path.name, iter(records), header, notes.append, advice)
    rows = [cells for (_, cells), _ in zip(rest, range(MAX_ROWS), strict=False)]
    if not rows:
        raise DataError(f"{path.name} has a header and no rows; give a file with rows")
    total = sample.total - (names is not None)
    whole = sample.whole and len(rows) < MAX_ROWS
    if sample.whole:  # of lines, some may be empty or go over several
        total = len(rows) if whole else max(total, len(rows))
    # That a header was recognised is seen by the names of the columns.
    return Table(kind, names, rows, total, whole, notes if names is None else [])


def _tab_records(path: Path, sample: Lines) -> Iterator[tuple[int, list[str]]]:
    """Cells of lines, as many in each: mixed separators are found here."""
    widths = Counter(line.count("\t") + 1 for line in sample.lines[:MAX_ROWS] if line.strip())
    # Of most lines; where as many have one column, another separator is what is wrong.
    width = max(widths, key=lambda each: (widths[each], each), default=1)
    most = 2 * widths[width] > widths.total()
    others = "most" if most else f"{widths[width]:,} of {widths.total():,}"
    for number, line in enumerate(sample.lines, start=1):
        cells = line.split("\t")
        if not line.strip() and width != 1:
            continue
        if len(cells) != width:
            if number > sample.first:
                continue  # from a stretch: training names the line
            raise DataError(
                f"{path.name}:{number}: {_other_width(line, len(cells), width, others)}"
            )
        yield number, cells


def _other_width(line: str, cells: int, width: int, others: str) -> str:
    columns = "1 column" if cells == 1 else f"{cells} columns"
    seen = f"the line has {columns} (separated by tabs), but {others} have {width}"
    for sign, name in ((";", "semicolons"), (",", "commas"), ("|", "bars"), ("  ", "spaces")):
        if cells == 1 and line.count(sign) >= width - 1 and line.count(sign):
            return f"{seen}; it seems to be separated by {name}: write tabs in every line"
    return f"{seen}; write the same columns, separated by one tab, in every line"


def _until_error(records: Iterable[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """The end of a beginning may be in the middle of a record."""
    try:
        yield from records
    except DataError as error:
        if "not closed" not in str(error):
            raise


def _jsonl(path: Path, sample: Lines) -> Table:
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(sample.lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number > sample.first:
                continue
            if number == 1 and line.lstrip().startswith("["):
                raise _is_array(path) from None
            if line.strip() == "{":
                raise DataError(
                    f"{path.name}:{number}: an object is written in several lines; write each in "
                    f"one, for example with `jq -c . {path.name} > {path.stem}.jsonl`"
                ) from None
            raise DataError(f"{path.name}:{number}: this is not valid JSON: {error}") from None
        if isinstance(value, list) and number == 1:
            raise _is_array(path)
        if not isinstance(value, dict):
            raise DataError(f"{path.name}:{number}: each line must be a JSON object, as in {{...}}")
        rows.append(value)
        if len(rows) == MAX_ROWS:
            break
    every = list(dict.fromkeys(key for row in rows[:KEY_WITHIN] for key in row))
    names, notes = _texts(path, every, rows)
    cells = [[_text(value_of(row, name)) for name in names] for row in rows]
    whole = sample.whole and len(rows) < MAX_ROWS
    return Table("jsonl", names, cells, sample.total, whole, notes)


def _is_array(path: Path) -> DataError:
    return DataError(
        f"{path.name} is one JSON array; write an object in each line (JSON Lines), for example "
        f"with `jq -c '.[]' {path.name} > {path.stem}.jsonl`"
    )


def _texts(
    path: Path, every: Sequence[str], rows: Sequence[dict[str, Any]]
) -> tuple[list[str], list[str]]:
    """The columns that hold texts, numbers or words, and the fields of objects that do, such as
    translation.en; and a note on the others. Raises DataError where fewer than two are left."""
    names: list[str] = []
    for name in every:
        objects = [value for row in rows if isinstance(value := row.get(name), dict)]
        fields = dict.fromkeys(key for value in objects[:KEY_WITHIN] for key in value)
        names += [f"{name}.{field}" for field in fields] if objects else [name]
    others = {name: kind for name in names if (kind := _other_kind(rows, name))}
    for name, kind in others.items():
        if kind == "bytes" and f"{name.rpartition('.')[0]}.path" in names:
            raise DataError(
                f"{path.name}: {name} holds recordings or pictures inside of the table; write each "
                f"recording into a file, and a table with their paths and texts"
            )
    kept = [name for name in names if name not in others]
    if len(kept) >= 2 or not others:
        what = [f"{name} ({kind})" for name, kind in others.items()]
        return kept, [f"not used, as it is no text: {', '.join(what)}"] if what else []
    name, kind = next(iter(others.items()))
    raise DataError(
        f"{path.name}: {name} holds {kind}, not text; write source and target as two texts in "
        f"each row"
    )


def _other_kind(rows: Sequence[dict[str, Any]], name: str) -> str:
    """What a column holds that is neither text nor a number nor a list of words; else empty."""
    for row in rows:
        value = value_of(row, name)
        if isinstance(value, list):
            if any(isinstance(one, dict) for one in value):
                return "lists of objects"
            if any(isinstance(one, list) for one in value):
                return "lists of lists"
            if any(isinstance(one, float) for one in value):
                return "lists of numbers"
            if any(isinstance(one, str) and len(one.split()) > 1 for one in value):
                return "lists of texts"
        elif isinstance(value, dict):
            return "objects in objects"
        elif not isinstance(value, str | int | float | None):
            return "dates" if isinstance(value, date) else type(value).__name__
    return ""


def _text(value: Any) -> str:
    return text_of_value(value, numbers=True, labels=True) or ""


def _parquet(path: Path) -> Table:
    rows: list[dict[str, Any]] = []
    arrow = load_pyarrow(path.name)
    with opened_parquet(str(path), path.name) as file:
        every, total = list(file.schema_arrow.names), int(file.metadata.num_rows)
        groups = file.metadata.num_row_groups
        chosen = sorted({groups * place // STRETCHES for place in range(STRETCHES)})
        batches = file.iter_batches(
            MAX_ROWS // STRETCHES, row_groups=chosen if groups > STRETCHES else None
        )
        try:
            for batch in batches:
                rows += batch.to_pylist()
                if len(rows) >= MAX_ROWS:
                    break
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path.name} is damaged ({reason_of(error)}); download it again"
            ) from None
    if not rows:
        raise DataError(f"{path.name} is empty; give a file with at least one row")
    names, notes = _texts(path, every, rows)
    cells = [[_text(value_of(row, name)) for name in names] for row in rows[:MAX_ROWS]]
    return Table("parquet", names, cells, total, len(rows) >= total, notes)
