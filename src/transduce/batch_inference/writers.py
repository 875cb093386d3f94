"""Output files of a shard: text, TSV, CSV, JSONL or Parquet, one row for each row of the input."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

from transduce.batch_inference.inputs import NUMBERED, Table
from transduce.batch_inference.parquet import ParquetTable
from transduce.batch_inference.rows import BLANK, Group, Row
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
            self.file.write("\t".join(map(_added, [*scores, text])) + "\n")


class _Tsv:
    """Columns of an input in the same format are written as they are there, byte for byte."""

    kind = "tsv"

    def __init__(self, file: TextIO, table: Table, cells: Cells) -> None:
        self.file, self.table = file, table
        if table.header and table.kind == self.kind:
            self.file.write(table.header)
            self.line(["", *cells.names])
        elif table.header or table.kind not in NUMBERED:
            self.line([*table.names, *cells.names])

    def write(self, group: Group, outputs: list[list[Any]]) -> None:
        for row, added in zip(group.rows, outputs, strict=True):
            if row.whole and self.table.kind == self.kind:
                self.file.write(row.whole)
                self.line(["", *map(_added, added)])
            else:
                text_of = _carried(self.table)
                carried = [text_of(v) for v in in_order(row.fields, self.table.names)]
                self.line([*map(_one_line, carried), *map(_added, added)])

    def line(self, cells: list[str]) -> None:
        self.file.write("\t".join(cell.replace("\t", " ") for cell in cells) + "\n")


class _Csv(_Tsv):
    kind = "csv"

    def line(self, cells: list[str]) -> None:
        csv.writer(self.file, lineterminator="\n").writerow(cells)


class _Jsonl:
    def __init__(self, file: TextIO, table: Table, cells: Cells) -> None:
        self.file, self.table, self.cells = file, table, cells

    def write(self, group: Group, outputs: list[list[Any]]) -> None:
        for row, added in zip(group.rows, outputs, strict=True):
            ours = zip(self.cells.names, map(_json, added), strict=True)
            same = row.whole if self.table.kind == "jsonl" else ""
            begin = same.removesuffix("}").rstrip(BLANK)
            if not begin:
                begin = "{" + ", ".join(f"{_json(key)}: {text}" for key, text in self._carried(row))
            comma = "" if begin == "{" else ", "
            members = ", ".join(f"{_json(key)}: {text}" for key, text in ours)
            self.file.write(f"{begin}{comma}{members}}}\n")

    def _carried(self, row: Row) -> Iterable[tuple[str, str]]:
        """Each key and the JSON of its value."""
        if isinstance(row.fields, dict):
            return row.fields.items()
        return zip(self.table.names, map(_json, row.fields), strict=True)


class _Parquet:
    def __init__(self, parquet: ParquetTable, table: Table) -> None:
        self.parquet, self.table = parquet, table

    def write(self, group: Group, outputs: list[list[Any]]) -> None:
        rows = []
        if group.batch is None:
            text_of = _carried(self.table)
            rows = [[text_of(v) for v in in_order(r.fields, self.table.names)] for r in group.rows]
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


def _carried(table: Table) -> Callable[[Any], str | None]:
    """A function from a value of a column of the input to its text; None for null."""
    return _text_of_json if table.kind == "jsonl" else _text_of


def _text_of_json(json_text: str | None) -> str | None:
    """The text of a JSON string; another value as it is written there."""
    if json_text is None or json_text == "null":
        return None
    return _utf8(json.loads(json_text)) if json_text.startswith('"') else json_text


def _text_of(value: Any) -> str | None:
    """The text of a cell of TSV or CSV, or of a value of Parquet: numbers to their last digit."""
    if value is None or isinstance(value, str):
        return value
    return _json(value) if isinstance(value, list | dict | bool) else str(value)


def _added(value: Any) -> str:
    """An output or a score in a cell, on one line."""
    if isinstance(value, float):
        return f"{value:.4f}"
    return " ".join(str(value or "").splitlines())


def _one_line(text: str | None) -> str:
    return re.sub(r"\r\n?|\n", " ", text or "")


def _json(value: Any) -> str:
    """JSON, which has neither NaN nor infinity; dates and the like as text."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, default=str)
    # Escaped where there is half of a surrogate pair, which is not UTF-8.
    return text if text == _utf8(text) else json.dumps(value, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return {key: _finite(one) for key, one in value.items()} if isinstance(value, dict) else value


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
