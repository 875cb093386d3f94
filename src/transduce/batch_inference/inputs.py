"""Input files of a batch job: finding and identifying them, their formats, columns and shards."""

from __future__ import annotations

import csv
import glob
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from transduce.automatic.given import (
    Given,
    Trained,
    columns_as_trained,
    given_file,
    named_column,
    source_of,
    tags_as_trained,
)
from transduce.checksums import digest_of
from transduce.corpora.unpack import DAMAGED, open_compressed
from transduce.data.text.columns import problem_of, without_header
from transduce.data.text.files import BOM, MAX_BYTES, UTF16, suffix_of
from transduce.errors import DataError, warn
from transduce.storage.positions import place_at
from transduce.storage.remote import RemotePath

TABLES = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".parquet": "parquet"}
NUMBERED = {"tsv": "tabs", "csv": "commas"}  # formats whose columns may be numbers
ADVICE = ("give --column 0", "choose a column by its name with --column")
SAMPLE = 1000  # lines of a JSONL file that give the columns of Parquet and TSV output

Column = str | int


@dataclass(frozen=True)
class InputFile:
    """A file and what identifies its content."""

    path: str
    sha256: str
    """Of the whole file; of a file in a store its version, which needs no reading."""
    stamp: str = field(compare=False)
    """Its size and times: while they are the same, the file need not be read again."""

    @classmethod
    def identify(cls, path: str, known: InputFile | None = None) -> InputFile:
        """The file as it is now, read only where it has another stamp than the `known` one.

        Raises DataError where it cannot be read.
        """
        place = place_at(path)
        if isinstance(place, RemotePath):
            version = place.version()
            stamp = f"{version.size} {version.changed}"
            return cls(path, stamp, stamp)
        try:
            stamp = _stamp(path)
            if known is not None and known.stamp == stamp:
                return known
            return cls(path, _digest(path, stamp), stamp)
        except OSError as error:
            raise DataError(_unreadable(path, error)) from None


def _stamp(path: str) -> str:
    found = Path(path).stat()
    # Unlike the time of modification, that of the last change of status cannot be set back.
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


@cache
def _digest(path: str, stamp: str) -> str:
    """SHA-256 of a file, read once for each stamp by a process and those forked from it."""
    return digest_of(Path(path))


@dataclass(frozen=True)
class Table:
    """The format of all inputs of a job, and their columns."""

    kind: str
    """text, tsv, csv, jsonl or parquet."""
    column: Column | None = None
    """The column of sources; None for text."""
    names: tuple[str, ...] = ()
    """The columns that are carried through to the output."""
    header: str = ""
    """The line of column names that each TSV or CSV file begins with, as it is; "" without."""
    tags: Column | None = None
    """The column of tags, which are put before each source."""

    @property
    def place(self) -> int:
        """The index of the column of sources."""
        return self.place_of(self.column)

    def place_of(self, column: Column | None) -> int:
        return column if isinstance(column, int) else self.names.index(str(column))


def find_inputs(patterns: Sequence[str]) -> list[str]:
    """The files that match, absolute, in order; those of one pattern sorted. Raises DataError."""
    found: list[str] = []
    for pattern in patterns:
        path = place_at(pattern)
        if path.is_file():
            matches = [str(path)]
        elif isinstance(path, RemotePath):
            matches = path.glob() if path.is_pattern else []
            if not matches:
                raise DataError(f"no file matches {pattern}; correct --input")
        elif path.is_dir():
            raise DataError(f"{path} is a folder; give its files: --input '{path}/*'")
        else:
            several = glob.glob(str(path), recursive=True)  # noqa: PTH207
            matches = sorted(one for one in several if Path(one).is_file())
        if not matches:
            raise DataError(
                f"no file matches {pattern!r} in {Path.cwd()}; correct --input (quote a pattern, "
                f"so that the shell does not expand it)"
            )
        found += [str(place_at(one).absolute()) for one in matches]
    for path_, following in zip(sorted(found), sorted(found)[1:], strict=False):
        if path_ == following:
            raise DataError(f"{path_} is given twice; each input file is used once")
    return found


def table_given(path: str, trained: Trained | None) -> tuple[str, Given | None]:
    """The table that a file on this machine is, as training reads it, and where it is."""
    if isinstance(place_at(path), RemotePath):
        return path, None
    given = given_file(Path(path), trained, commas=True)
    return str(given.path), given


def column_of_sources(given: Given | None, trained: Trained | None) -> str | None:
    """The column that training had, where the table has a header; None: the usual one."""
    if given is None or given.kind is None or trained is None:
        return None
    wanted = source_of(trained)
    if given.kind not in NUMBERED and isinstance(wanted, int):
        return None
    (found,) = columns_as_trained(given, [wanted])
    return named_column(given, found)


def column_of_tags(given: Given | None, trained: Trained | None) -> Column | None:
    """The column that had the tags in training, if the table has it."""
    return None if given is None or given.kind is None else tags_as_trained(given, trained)


def kind_of(paths: Sequence[str]) -> str:
    """The format of all files. Raises DataError where they differ."""
    kinds: dict[str, str] = {}
    for path in paths:
        kinds.setdefault(TABLES.get(suffix_of(path), "text"), path)
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise DataError(
            f"{first} is {one}, but {second} is {other}; give files of one format in a job"
        )
    return next(iter(kinds))


def read_table(paths: Sequence[str], column: str | None, tags: Column | None = None) -> Table:
    """The format and columns of the inputs, which must agree. Raises DataError."""
    kind = kind_of(paths)
    if kind == "text":
        if column is not None:
            raise DataError(
                f"{paths[0]} is plain text, one source per line, and has no columns; leave out "
                f"--column, or name the file .tsv, .csv, .jsonl or .parquet"
            )
        return Table("text", None, ("source",))
    chosen: Column = column or ("0" if kind in NUMBERED else "source")
    if kind in NUMBERED and str(chosen).isdecimal():
        chosen = int(chosen)
    first: Table | None = None
    header = isinstance(chosen, str) and kind in NUMBERED
    if kind in NUMBERED and column is None:
        header = _has_header(paths[0], kind)
    for path in paths:
        names = _names(path, kind, chosen, header)
        if not names:
            continue  # an empty file
        for one in (chosen, tags):
            if isinstance(one, str) and one not in names:
                how = "choose one with --column" if one == chosen else "its tags: --tag"
                raise DataError(
                    f"{path}: there is no column {one}; there are: {', '.join(names)} ({how})"
                )
        if isinstance(chosen, int) and chosen >= len(names):
            raise DataError(
                f"{path}: there are {len(names)} columns, separated by {NUMBERED[kind]}, so there "
                f"is no column {chosen} (counted from 0); choose another with --column"
            )
        if first is None:
            first = Table(kind, chosen, names, _first_line(path) if header else "", tags)
        elif kind != "jsonl" and names != first.names:
            raise DataError(
                f"the columns of {path} ({', '.join(names)}) are not those of {paths[0]} "
                f"({', '.join(first.names)}); give files with the same columns"
            )
    if first is None:
        raise DataError(f"{paths[0]} has no lines; give files with at least one line")
    return first


def _has_header(path: str, kind: str) -> bool:
    """Whether a file begins with column names, where no column is chosen; says what is assumed."""

    def records() -> Iterator[tuple[int, list[str]]]:
        with opened(path) as file:
            for number, raw in enumerate(iter(lambda: file.readline(MAX_BYTES), b""), start=1):
                line = raw.removeprefix(BOM).rstrip(b"\r\n").decode("utf-8", "replace")
                try:
                    yield number, split_cells(line, kind)
                except csv.Error:
                    return  # it is reported when it is its turn

    return without_header(path, records(), None, warn, ADVICE)[0] is not None


def _names(path: str, kind: str, column: Column, header: bool) -> tuple[str, ...]:
    if kind == "parquet":
        from transduce.batch_inference.parquet import column_names

        return column_names(path, str(column))
    with opened(path) as file:
        if kind in NUMBERED:
            line = _text_of(file)
            try:
                fields = split_cells(line, kind) if line else []
            except csv.Error as error:
                raise DataError(f"{path}:1: {problem_of(error)}") from None
            return tuple(name if header else f"column{i}" for i, name in enumerate(fields))
        return tuple(_keys(file))


def _first_line(path: str) -> str:
    with opened(path) as file:
        return _text_of(file)


def _text_of(file: BinaryIO) -> str:
    line = file.readline(MAX_BYTES).removeprefix(BOM).removesuffix(b"\n").removesuffix(b"\r")
    return line.decode("utf-8", "replace")


def split_cells(line: str, kind: str) -> list[str]:
    """The cells of a line of TSV or CSV. Raises csv.Error."""
    if kind == "tsv" or '"' not in line:
        return line.split("\t" if kind == "tsv" else ",")
    return next(csv.reader([line], strict=True))


def check_one_line_records(path: str) -> None:
    """Raise DataError where a cell of a CSV file goes over several lines: shards are cut between
    lines.
    """
    with opened(path) as file:
        for number, raw in enumerate(iter(lambda: file.readline(MAX_BYTES), b""), start=1):
            if b'"' not in raw:
                continue
            try:
                split_cells(raw.decode("utf-8", "replace").rstrip("\r\n"), "csv")
            except csv.Error as error:
                if "end of data" in str(error):
                    raise DataError(
                        f"{path}:{number}: a quote is not closed in this line; a batch job reads "
                        f"one row per line, so replace line breaks inside cells, or give a .jsonl "
                        f"or .parquet file"
                    ) from None


def _keys(file: BinaryIO) -> dict[str, None]:
    """The keys of the first objects of a JSONL file, in order."""
    keys: dict[str, None] = {}
    for _ in range(SAMPLE):
        raw = file.readline(MAX_BYTES)
        if not raw:
            break
        try:
            record: Any = json.loads(raw.removeprefix(BOM))
        except (ValueError, RecursionError):
            continue  # a bad line, which is reported when it is its turn
        if isinstance(record, dict):
            keys |= dict.fromkeys(record)
    return keys


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A text file, decompressed; errors of reading become a DataError."""
    try:
        with open_compressed(place_at(path)) as file:
            yield file
    except DAMAGED as error:
        raise DataError(
            f"{path} is damaged or truncated ({error or 'it ends too early'}), so its lines cannot "
            f"be read; download or compress it again, or leave it out"
        ) from None
    except OSError as error:
        raise DataError(_unreadable(path, error)) from None


def _unreadable(path: str, error: OSError) -> str:
    return f"{path} cannot be read ({error.strerror or error}); check that it is there"


CHUNK = 1 << 20  # bytes of a file in memory while its lines are counted


class Shard(NamedTuple):
    """Some consecutive lines of a file."""

    number: int
    file: int
    """The index of the input file."""
    offset: int
    """The first byte, of the decompressed text; 0 for Parquet."""
    first: int
    """The first line, counted from 1; for Parquet, the first row."""
    lines: int


Part = tuple[int, int, int]
"""Lines of a file: the first byte, the first line, how many."""


def cut(path: str, table: Table, maximum: int) -> Iterator[Part]:
    """Cut a file into parts of at most `maximum` lines.

    For Parquet, whole row groups where they fit. Raises DataError.
    """
    if table.kind == "parquet":
        from transduce.batch_inference.parquet import row_groups

        for first, rows in _packed(row_groups(path), maximum):
            yield 0, first, rows
        return
    if table.kind == "csv":
        check_one_line_records(path)
    with opened(path) as file:
        yield from _cut_text(file, path, maximum, bool(table.header))


def _cut_text(file: BinaryIO, path: str, maximum: int, header: bool) -> Iterator[Part]:
    begin = file.read(2)
    if begin in UTF16:
        raise DataError(
            f"{path} looks like UTF-16; convert it first: iconv -f UTF-16 -t UTF-8 {path}"
        )
    position = 0  # of the chunk in the file
    start, first, lines = 0, 1, 0  # of the shard
    wanted = 1 if header else maximum
    chunk = begin + file.read(CHUNK)
    last = b""
    while chunk:
        last = chunk[-1:]
        newlines = chunk.count(b"\n")
        place = 0
        while lines + newlines >= wanted:
            # The end of the line that completes the shard is in this chunk.
            missing = wanted - lines
            place = _after(chunk, missing, place)
            newlines -= missing
            if not header:
                yield start, first, wanted
            header = False
            start, first, lines, wanted = position + place, first + wanted, 0, maximum
        lines += newlines
        position += len(chunk)
        chunk = file.read(CHUNK)
    rest = lines + (position > start and last != b"\n")
    if rest and not header and not (position == len(BOM) and begin == BOM[:2]):
        yield start, first, rest


def _after(chunk: bytes, lines: int, place: int) -> int:
    """The index behind the next so many ends of lines."""
    for _ in range(lines):
        place = chunk.index(b"\n", place) + 1
    return place


def _packed(sizes: list[int], maximum: int) -> Iterator[tuple[int, int]]:
    """Rows from 1 and how many: consecutive groups together, larger ones cut."""
    first, rows = 1, 0
    for size in sizes:
        if rows and rows + size > maximum:
            yield first, rows
            first, rows = first + rows, 0
        rows += size
        while rows > maximum:
            yield first, maximum
            first, rows = first + maximum, rows - maximum
    if rows:
        yield first, rows


def joined(parts: Sequence[Part], count: int) -> Iterator[Part]:
    """So many consecutive parts of a file as one."""
    for place in range(0, len(parts), count):
        some = parts[place : place + count]
        yield some[0][0], some[0][1], sum(lines for _, _, lines in some)


def shards_of_task(shards: int, task: int, tasks: int) -> range:
    """The shards of task i of n, such as one of a Slurm array: each shard is in exactly one."""
    return range(task * shards // tasks, (task + 1) * shards // tasks)


def parse_task(text: str) -> tuple[int, int]:
    """`i/n`, i from 0 to n - 1. Raises DataError."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise DataError(f"--shard is {text!r}; it must be i/n with i from 0 to n-1, such as 0/8")
    return int(found[1]), int(found[2])
