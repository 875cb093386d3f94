"""The rows of a shard, in groups of bounded size. A bad line is a row with a problem."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from transduce.batch_inference.inputs import Shard, Table, opened, split_cells
from transduce.batch_inference.parquet import plain_rows, read_batches, texts_of
from transduce.data.text.columns import problem_of
from transduce.data.text.files import BOM, LONGEST, MAX_BYTES
from transduce.data.text.tags import split_tags, with_tags
from transduce.errors import DataError
from transduce.recipe import InvalidValue, plain_tag

# A group is decoded at once. Its bounds are part of a job's result: rounding may differ with the
# sources of a batch, so a shard has to have the same groups whenever it is decoded.
GROUP_LINES = 2048
GROUP_BYTES = 1 << 23
CHUNK = 1 << 20
BLANK = " \t\r\n"  # between the parts of JSON

EMPTY = "the source is empty"
NOT_UTF8 = "the line is not UTF-8"
SURROGATE = "the source holds half of a surrogate pair, which is not a character"


@dataclass(slots=True)
class Row:
    """One line: its source, or what is wrong with it, and the columns that are carried through."""

    line: int
    source: str
    problem: str
    fields: Any = None
    """A list in the order of Table.names; of a JSONL line the JSON of each key, as it is there."""
    whole: str = ""
    """The line of a TSV, CSV or JSONL file as it is, where it is well-formed."""
    tags: list[str] = field(default_factory=list)
    """Those before the source."""


@dataclass(slots=True)
class Group:
    """Rows that are decoded together; for Parquet, with their record batch."""

    rows: list[Row] = field(default_factory=list)
    batch: Any = None


def read_groups(path: str, table: Table, shard: Shard) -> Iterator[Group]:
    """The rows of a shard in order. Raises DataError where the file is not the one of the plan."""
    if table.kind == "parquet":
        yield from _parquet_groups(path, table, shard)
        return
    read = {"text": _text_row, "tsv": _cells_row, "csv": _cells_row, "jsonl": _jsonl_row}[
        table.kind
    ]
    group, size = Group(), 0
    for number, raw in _lines(path, shard, table.kind == "text"):
        group.rows.append(read(number, raw, table))
        size += len(raw or b"")
        if len(group.rows) >= GROUP_LINES or size >= GROUP_BYTES:
            yield group
            group, size = Group(), 0
    if group.rows:
        yield group


def _lines(path: str, shard: Shard, text: bool) -> Iterator[tuple[int, bytes | None]]:
    """Each line's number and bytes without its end; None for one that is too long."""
    maximum = 4 * LONGEST + 4 if text else MAX_BYTES
    with opened(path) as file:
        _skip(file, shard.offset)
        for number in range(shard.first, shard.first + shard.lines):
            raw = file.readline(maximum)
            if not raw:
                raise DataError(
                    f"{path} ends before line {number}, and was longer when the job was started; "
                    f"restore the file"
                )
            whole = raw.endswith(b"\n") or len(raw) < maximum
            while not whole:
                more = file.readline(CHUNK)
                whole = more.endswith(b"\n") or len(more) < CHUNK
                if whole:
                    raw = b""
            if not raw:
                yield number, None
                continue
            bare = raw.removesuffix(b"\n").removesuffix(b"\r")
            yield number, bare.removeprefix(BOM) if number == 1 else bare


def _skip(file: BinaryIO, offset: int) -> None:
    """Go to a byte of the text; a compressed file is decompressed up to there."""
    import io

    if isinstance(file, io.BufferedReader):
        file.seek(offset)
        return
    while offset and (skipped := file.read(min(offset, CHUNK))):
        offset -= len(skipped)


def _checked(line: int, source: str, fields: Any, problem: str = "", whole: str = "") -> Row:
    if not problem and len(source) > LONGEST:
        problem = f"the source has {len(source):,} characters; at most {LONGEST:,} are read"
    return Row(line, "" if problem else source, problem, fields, whole)


def _tagged(row: Row, cell: Any) -> Row:
    """The row with the tags of a cell before its source, as in training."""
    text = " ".join(map(str, cell)) if isinstance(cell, list) else cell or ""
    try:
        if not isinstance(text, str):
            raise InvalidValue("", f"is {cell!r:.40}; it must be a text")
        row.tags = [plain_tag(tag) for tag in split_tags(text)]
    except InvalidValue as misfit:
        row.problem, row.source = row.problem or f"the tag {misfit.message}", ""
        return row
    if row.source.strip():
        row.source = with_tags(row.source, row.tags)
    return row


def _text_row(line: int, raw: bytes | None, table: Table) -> Row:
    if raw is None:
        return _checked(line, "", [""], f"the line has more than {LONGEST:,} characters")
    try:
        source = raw.decode("utf-8")
    except UnicodeDecodeError:
        return _checked(line, "", [raw.decode("utf-8", "replace")], NOT_UTF8)
    return _checked(line, source, [source])


def _cells_row(line: int, raw: bytes | None, table: Table) -> Row:
    width = len(table.names)
    if raw is None:
        return _checked(line, "", [""] * width, _over_long())
    fields, problem = [""], ""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text, problem = raw.decode("utf-8", "replace"), NOT_UTF8
    try:
        fields = split_cells(text, table.kind)
    except csv.Error as error:
        problem = problem or problem_of(error)
    count = len(fields)
    fields = (fields + [""] * width)[:width]
    if not problem and count != width and raw.strip():
        problem = f"the line has {count} columns, but the first line of the input has {width}"
    whole = text if not problem and count == width else ""
    row = _checked(line, fields[table.place], fields, problem, whole)
    return row if table.tags is None else _tagged(row, fields[table.place_of(table.tags)])


def _jsonl_row(line: int, raw: bytes | None, table: Table) -> Row:
    if raw is None:
        return _checked(line, "", {}, _over_long())
    if not raw.strip():
        return _checked(line, "", {}, EMPTY)
    try:
        whole = raw.decode("utf-8").strip(BLANK)
        record = json.loads(whole)
    except UnicodeDecodeError:
        return _checked(line, "", {}, NOT_UTF8)
    except (ValueError, RecursionError) as error:
        return _checked(line, "", {}, f"the line is not valid JSON ({error})")
    if not isinstance(record, dict):
        return _checked(line, "", {}, "the line is not a JSON object, as in {...}")
    fields = json_of_keys(whole)
    value = record.get(str(table.column))
    if str(table.column) not in record:
        return _checked(line, "", fields, f"there is no key {table.column}", whole)
    if value is None:
        return _checked(line, "", fields, EMPTY, whole)
    if not isinstance(value, str):
        return _checked(line, "", fields, f"the value of {table.column} is not text", whole)
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        return _checked(line, "", fields, SURROGATE, whole)
    row = _checked(line, value, fields, "", whole)
    return row if table.tags is None else _tagged(row, record.get(str(table.tags)))


def json_of_keys(text: str) -> dict[str, str]:
    """The JSON text of each value of a valid JSON object: Python would write 1e-7 as 1e-07."""
    decode = json.JSONDecoder().raw_decode
    found: dict[str, str] = {}
    place = _after_blanks(text, 1)
    while text[place] != "}":
        key, place = decode(text, place)
        start = _after_blanks(text, _after_blanks(text, place) + 1)  # behind the colon
        _, place = decode(text, start)
        found[key] = text[start:place]
        place = _after_blanks(text, place)
        if text[place] == ",":
            place = _after_blanks(text, place + 1)
    return found


def _after_blanks(text: str, place: int) -> int:
    while text[place] in BLANK:
        place += 1
    return place


def _over_long() -> str:
    return f"the line has more than {MAX_BYTES >> 20} MB"


def _parquet_groups(path: str, table: Table, shard: Shard) -> Iterator[Group]:
    number = shard.first
    for batch, damage in read_batches(path, shard.first, shard.lines, GROUP_LINES):
        fields = plain_rows(batch)
        rows = []
        place = None if table.tags is None else table.place_of(table.tags)
        for source, of_row in zip(texts_of(batch, str(table.column)), fields, strict=True):
            wrong = NOT_UTF8 if source == "\udcff" else "" if source is not None else EMPTY
            problem = damage or wrong
            row = _checked(number, source or "", of_row, problem)
            rows.append(row if place is None else _tagged(row, of_row[place]))
            number += 1
        yield Group(rows, batch)
