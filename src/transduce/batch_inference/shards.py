"""Shards: consecutive lines of one input file, and which task of an array decodes which."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

from transduce.batch_inference.inputs import BOM, UTF16, Table, check_one_line_records, opened
from transduce.errors import DataError

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


def cut(path: str, table: Table, most: int) -> Iterator[Part]:
    """Cut a file into parts of at most `most` lines.

    For Parquet, whole row groups where they fit. Raises DataError.
    """
    if table.kind == "parquet":
        from transduce.batch_inference.parquet import row_groups

        for first, rows in _packed(row_groups(path), most):
            yield 0, first, rows
        return
    if table.kind == "csv":
        check_one_line_records(path)
    with opened(path) as file:
        yield from _cut_text(file, path, most, bool(table.header))


def _cut_text(file: BinaryIO, path: str, most: int, header: bool) -> Iterator[Part]:
    begin = file.read(2)
    if begin in UTF16:
        raise DataError(
            f"{path} looks like UTF-16; convert it first: iconv -f UTF-16 -t UTF-8 {path}"
        )
    position = 0  # of the chunk in the file
    start, first, lines = 0, 1, 0  # of the shard
    wanted = 1 if header else most
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
            start, first, lines, wanted = position + place, first + wanted, 0, most
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


def _packed(sizes: list[int], most: int) -> Iterator[tuple[int, int]]:
    """Rows from 1 and how many: consecutive groups together, larger ones cut."""
    first, rows = 1, 0
    for size in sizes:
        if rows and rows + size > most:
            yield first, rows
            first, rows = first + rows, 0
        rows += size
        while rows > most:
            yield first, most
            first, rows = first + most, rows - most
    if rows:
        yield first, rows


def joined(parts: Sequence[Part], count: int) -> Iterator[Part]:
    """So many consecutive parts of a file as one."""
    for place in range(0, len(parts), count):
        some = parts[place : place + count]
        yield some[0][0], some[0][1], sum(lines for _, _, lines in some)


def share(shards: int, task: int, tasks: int) -> range:
    """The shards of task i of n, such as one of a Slurm array: each shard is in exactly one."""
    return range(task * shards // tasks, (task + 1) * shards // tasks)


def parse_share(text: str) -> tuple[int, int]:
    """`i/n`, i from 0 to n - 1. Raises DataError."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise DataError(f"--shard is {text!r}; it must be i/n with i from 0 to n-1, such as 0/8")
    return int(found[1]), int(found[2])
