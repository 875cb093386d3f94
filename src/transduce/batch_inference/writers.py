"""Output files of a shard: text, TSV, CSV, JSONL or Parquet, one row for each row of the input."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from transduce.batch_inference.inputs import NUMBERED, Table
from transduce.batch_inference.parquet import ParquetTable
from transduce.batch_inference.rows import Group
from transduce.errors import DataError

ENDINGS = {"text": ".txt", "tsv": ".tsv", "csv": ".csv", "jsonl": ".jsonl", "parquet": ".parquet"}


class Cells:
    """The columns that a job adds to those of the input."""

    def __init__(self, output: str, scores: bool, nbest: bool) -> None:
        self.columns = [(output, "text")]
        self.columns += [("score", "score")] if scores else []
        self.columns += [("nbest", "nbest")] if nbest else []
        self.names = [name for name, _ in self.columns]

    def check(self, table: Table, form: str) -> None:
        """Raises DataError where the output cannot have these columns."""
        if "nbest" in self.names and form not in ("jsonl", "parquet"):
            raise DataError(
                f"--nbest needs a column of lists, which {form} does not have; give --format jsonl "
                f"or parquet"
            )
        if form == "text":
            return
        for name in self.names:
            if name in table.names:
                raise DataError(
                    f"the input has a column {name} already; name the column of outputs with "
                    f"--output-column" + ("" if name == self.names[0] else f", or rename {name}")
                )
        for name in table.names:
            if table.names.count(name) > 1 and form not in NUMBERED:
                raise DataError(f"the input has several columns {name}; rename one of them")


class Writer(Protocol):
    """Writes the rows of a shard."""

    def write(self, group: Group, outputs: list[list[Any]]) -> None:
        """`outputs`: for each row, the values of the added columns."""


class _Text:
    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, group: Group, outputs: list[list[Any]]) -> None:
        for text, *scores in outputs:
            self.file.write("\t".join([*map(_cell, scores), " ".join(text.splitlines())]) + "\n")


class _Tsv:
    def __init__(self, file: TextIO, table: Table, cells: Cells) -> None:
        self.file, self.table = file, table
        if table.header or table.kind not in NUMBERED:
            self.line([*table.names, *cells.names])

    def write(self, group: Group, outputs: list[list[Any]]) -> None:
        for row, added in zip(group.rows, outputs, strict=True):
            self.line([*in_order(row.fields, self.table.names), *added])

    def line(self, values: list[Any]) -> None:
        self.file.write("\t".join(map(_cell, values)) + "\n")


class _Csv(_Tsv):
    def line(self, values: list[Any]) -> None:
        # One line per row, as in the input; tabs in a cell are kept.
        cells = [_cell(value, tabs=True) for value in values]
        csv.writer(self.file, lineterminator="\n").writerow(cells)


class _Jsonl:
    def __init__(self, file: TextIO, table: Table, cells: Cells) -> None:
        self.file, self.table, self.cells = file, table, cells

    def write(self, group: Group, outputs: list[list[Any]]) -> None:
        for row, added in zip(group.rows, outputs, strict=True):
            fields = row.fields
            named = fields if isinstance(fields, dict) else dict(self._pairs(fields))
            record = {**named, **dict(zip(self.cells.names, added, strict=True))}
            # Escaped where a line of the input has half of a surrogate pair, which is not UTF-8.
            text = json.dumps(record, ensure_ascii=False, default=str)
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                text = json.dumps(record, default=str)
            self.file.write(text + "\n")

    def _pairs(self, fields: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        return zip(self.table.names, fields, strict=True)


class _Parquet:
    def __init__(self, parquet: ParquetTable, table: Table) -> None:
        self.parquet, self.table = parquet, table

    def write(self, group: Group, outputs: list[list[Any]]) -> None:
        rows = []
        if group.batch is None:
            rows = [[_string(v) for v in in_order(r.fields, self.table.names)] for r in group.rows]
        self.parquet.write(group.batch, rows, outputs)


@contextmanager
def writer_of(path: Path, form: str, table: Table, cells: Cells) -> Iterator[Writer]:
    """A writer for one output file, closed at the end."""
    if form == "parquet":
        parquet = ParquetTable(path, table.names, cells.columns)
        try:
            yield _Parquet(parquet, table)
        finally:
            parquet.close()
        return
    with path.open("w", encoding="utf-8", newline="\n") as file:
        if form == "text":
            yield _Text(file)
        else:
            kinds: dict[str, type[_Tsv | _Jsonl]] = {"tsv": _Tsv, "csv": _Csv, "jsonl": _Jsonl}
            yield kinds[form](file, table, cells)


def in_order(fields: Any, names: Sequence[str]) -> list[Any]:
    """The values of a row in the order of the columns."""
    return [fields.get(name) for name in names] if isinstance(fields, dict) else list(fields)


def _string(value: Any) -> str | None:
    """A value of a JSONL object in a column of text."""
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text.encode("utf-8", "replace").decode("utf-8")


def _cell(value: Any, tabs: bool = False) -> str:
    """A value in a TSV file, where tabs and line breaks separate; in a CSV file, with its tabs."""
    if isinstance(value, float):
        return f"{value:.4f}" if math.isfinite(value) else ""
    text = _string(value) or ""
    return " ".join((text if tabs else text.replace("\t", " ")).splitlines())
