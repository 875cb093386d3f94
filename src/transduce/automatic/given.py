"""A file that is given to a trained model: in any form that training reads, with its columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transduce.automatic.columns import format_by_name
from transduce.automatic.elsewhere import with_paths
from transduce.automatic.inspect import TABLES, format_of, refuse
from transduce.automatic.rewrite import PREFIX, SENTENCES, rewritten, rewritten_pair
from transduce.automatic.sample import sample_table
from transduce.data.audio.read import place_of
from transduce.data.text.columns import csv_records, read_rows, without_header
from transduce.data.text.files import read_lines
from transduce.data.text.pairs import seconds_in
from transduce.data.text.parquet import opened_parquet
from transduce.data.text.tags import tags_in, with_tags
from transduce.errors import DataError, warn
from transduce.recipe import Column, Columns, Recipe, Recordings, Where
from transduce.terminal import say

LINES = ("", "txt")  # endings of files whose lines are texts, whatever they look like
NUMBERED = ("tsv", "csv")
ADVICE = ("write a header above it", "remove it")  # where the first line is unclear
USUAL = {0: "source", 1: "target"}
LOOKED_AT = 100  # objects of JSON Lines whose keys are known

Trained = Columns | Recordings


@dataclass(frozen=True)
class Given:
    """What is read in place of the file that was given."""

    path: Path
    kind: str | None
    """tsv, csv, jsonl or parquet; None: lines of text."""
    made_of: Path | None = None
    """The file itself, if a table was written beside it."""
    header: bool | None = None
    """Whether that table begins with one; None: its first lines decide."""

    @property
    def name(self) -> str:
        """The name of the file that was given."""
        return (self.made_of or self.path).name


def trained_on(recipe: Recipe) -> Trained | None:
    """The columns that a model was trained on; None: it was not trained on a table."""
    data = recipe.data
    given = (data.test, data.valid, data.train)
    return next((one for one in given if isinstance(one, Columns | Recordings)), None)


def given_file(
    path: Path, trained: Trained | None, pairs: bool = False, commas: bool = False
) -> Given:
    """A file as training would read it; what it is made into is said. Raises DataError.

    pairs: whether it has to be a table; else each line of a text is a source, unless training read
    a text as a table. commas: whether CSV must be separated by these.
    """
    if not path.is_file():  # a pipe, or nothing
        return Given(path, None)
    first, ending = path, format_by_name(path).lower()
    refuse(path, ending)
    as_table = pairs or ending not in LINES or (trained is not None and _was_text(trained))
    words = None
    if trained is not None and any(one.endswith(SENTENCES) for one in _files(trained)):
        words = str(source_of(trained))
    table = rewritten(path, {}, parts=False, as_table=as_table, commas=commas, words=words)
    if table is not None:
        for sentence in table.seen:
            say(sentence)
        path, ending = table.path, format_by_name(table.path).lower()
    kind = {"ndjson": "jsonl"}.get(ending, ending)
    if kind not in TABLES:
        kind = _by_its_lines(path) if as_table else ""
    if kind not in TABLES:
        return Given(path, None)
    if isinstance(trained, Recordings):
        listed = with_paths(path, sample_table(path, kind))
        if listed is not None:
            say(f"{path.name}: its recordings are elsewhere; with their paths it is {listed.name}.")
            return Given(listed, "tsv", first)
    return Given(path, kind) if table is None else Given(path, kind, first, table.header)


def given_pair(first: Path, second: Path) -> Columns | None:
    """The table of two files whose lines do not belong together, but whose subtitles or segments
    do, as training pairs them: it is said. None: other files. Raises DataError."""
    if not (first.is_file() and second.is_file()):
        return None
    table = rewritten_pair(first.absolute(), second.absolute(), parts=False)
    if table is None:
        return None
    for sentence in table.seen:
        say(sentence)
    place = str(table.path.resolve())
    return Columns(file=place, format="tsv", source="source", target="target", header=table.header)


def _was_text(trained: Trained) -> bool:
    """Whether the table of training was made of a file of another form, or its name does not say
    that it is one."""
    made = any(Path(one).name.startswith(PREFIX) for one in _files(trained))
    return trained.format is not None or made


def _files(trained: Trained) -> Sequence[str]:
    return [trained.file] if isinstance(trained.file, str) else trained.file


def _by_its_lines(path: Path) -> str:
    try:
        return format_of(path)
    except DataError:
        return ""  # such as one with empty lines alone: reading it says what is wrong


def columns_as_trained(given: Given, wanted: Sequence[Column]) -> list[Column]:
    """Where a table has the columns of training: by the same names or numbers; what is the only one
    that is there is the only one that is wanted. Raises DataError."""
    header, there = _columns_of(given)
    if given.kind not in NUMBERED:
        wanted = list(map(_name, wanted))
    if len(there) == len(wanted) == 1:
        return [0 if given.kind in NUMBERED else there[0]]
    if all(_is_there(one, given, there) for one in wanted):
        return list(wanted)
    asked = " and ".join(str(one) for one in wanted)
    asked = f"column {asked}" if len(wanted) == 1 else f"columns {asked}"
    numbered = not any(isinstance(one, str) for one in wanted)
    counted = "one column" if len(there) == 1 else f"{len(there)} columns"
    has = f"the columns {', '.join(there)}" if header else f"{counted} without a header"
    how = (
        "give it these columns in the same order"
        if numbered
        else f"call {'it' if len(wanted) == 1 else 'them'} so"
        if header
        else "write a header above that has these names"
    )
    raise DataError(
        f"{given.name} has {has}, and the model was trained on the {asked}"
        f"{' (counted from 0)' if numbered else ''}; {how}"
    )


def named_column(given: Given, column: Column) -> str | None:
    """The name of a column, or its number where there is no header; None: it is the first, and the
    header is unclear."""
    header, there = _columns_of(given)
    if isinstance(column, int) and not header:
        return str(column) if column else None
    return there[column] if isinstance(column, int) else column


def has_columns(given: Given, where: Sequence[Where]) -> bool:
    there = _columns_of(given)[1]
    return all(_is_there(one.column, given, there) for one in where)


def _is_there(column: Column, given: Given, there: Sequence[str]) -> bool:
    if isinstance(column, str):
        return column in there
    return given.kind in NUMBERED and column < len(there)


def tags_as_trained(given: Given, trained: Trained | None) -> Column | None:
    """Where a table has the column of tags of training; None: there was none, or the table has none
    of that name or number, which is said where it has several."""
    column = None if trained is None else trained.tags
    if column is None:
        return None
    there = _columns_of(given)[1]
    if len(there) > 1 and _is_there(column, given, there):
        return column
    if len(there) > 1:
        counted = " (counted from 0)" if isinstance(column, int) else ""
        say(
            f"{given.name} has no column {column}{counted}, which had the tags in training; "
            f"its sources are read without tags (--tag gives all the same)"
        )
    return None


def _name(column: Column) -> Column:
    """As JSON Lines and Parquet have it, where there are names alone."""
    return USUAL.get(column, column) if isinstance(column, int) else column


def read_as_trained(
    given: Given,
    trained: Trained | None,
    *,
    target: bool = False,
    known: Collection[str] | None = None,
) -> Iterator[list[str]]:
    """The sources of a table, row by row, from the column of training, or else the first; with
    target, each with its target. Of recordings they are parts of files where training had times.

    known: the tags of the model: sources begin with those of the column that had them in training.
    """
    wanted: list[Column] = [0 if trained is None else source_of(trained)]
    if target and trained is not None:
        wanted.append(trained.target)
    found = columns_as_trained(given, wanted)
    column = None if known is None else tags_as_trained(given, trained)
    times = _times_as_trained(given, trained)
    place, named = str(given.path.absolute()), [one for one in found if isinstance(one, str)]
    asked = [*found, *times.values(), *([] if column is None else [column])]
    name = given.path.name
    for line, (source, *rest) in read_rows(
        place,
        None,
        asked,
        given.kind,
        given.header,
        numbers=True,
        labels=named,
        say=warn,
        advice=ADVICE,
    ):
        of_row = () if column is None else tags_in(rest.pop(), name, line, known)
        cells, rest = rest[len(rest) - len(times) :], rest[: len(rest) - len(times)]
        if times and source.strip():
            seconds = (seconds_in(cell, name, line) for cell in cells)
            source = place_of(Path(source), **dict(zip(times, seconds, strict=True)))
        if of_row:
            source = with_tags(source, of_row) if source.strip() else source
        yield [source, *rest]


def _times_as_trained(given: Given, trained: Trained | None) -> dict[str, Column]:
    """The columns of the start and the end of a recording in its file that training had; none where
    a table has not all of them, which is said where it has several columns."""
    if not isinstance(trained, Recordings):
        return {}
    had = {"start": trained.start, "end": trained.end}
    wanted = {key: column for key, column in had.items() if column is not None}
    there = _columns_of(given)[1]
    if all(_is_there(one, given, there) for one in wanted.values()):
        return wanted
    if len(there) > 1:
        asked = " and ".join(str(one) for one in wanted.values())
        say(
            f"{given.name} lacks {asked}, which had the times in training; its recordings are read "
            f"as a whole"
        )
    return {}


def _columns_of(given: Given) -> tuple[bool, list[str]]:
    """Whether a table begins with a header, and the cells of its first line; of JSON Lines the keys
    of its first objects, of Parquet its columns, with those within them."""
    if given.kind == "parquet":
        with opened_parquet(str(given.path), given.path.name) as file:
            fields = [(one.name, one.type) for one in file.schema_arrow]
        inner = [f"{name}.{kind.field(n).name}" for name, kind in fields for n in _fields(kind)]
        return True, [*(name for name, _ in fields), *inner]
    lines = read_lines(given.path.name, str(given.path.parent), table=True)
    if given.kind == "jsonl":
        return True, list(dict.fromkeys(_keys(islice(lines, LOOKED_AT))))
    numbered = enumerate(lines, start=1)
    records = (
        csv_records(lines, given.path.name)
        if given.kind == "csv"
        else ((number, line.split("\t")) for number, line in numbered)
    )
    header, rows = without_header(given.path.name, records, given.header)
    return header is not None, next(rows)[1] if header is None else header


def _fields(kind: Any) -> range:
    """The fields of a type of Arrow: those of an object."""
    return range(kind.num_fields if str(kind).startswith("struct") else 0)


def _keys(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # it is said when it is its turn
        for key, value in record.items() if isinstance(record, dict) else ():
            yield from (f"{key}.{inner}" for inner in value) if isinstance(value, dict) else [key]


def is_request(given: Given, trained: Trained | None) -> bool:
    """Whether the objects of JSON Lines are requests, which have a source and what is wanted of
    its output, and not rows as training has them."""
    if given.kind != "jsonl" or trained is None:
        return given.kind == "jsonl"
    there = {*_columns_of(given)[1]}
    wanted = (source_of(trained), trained.target, trained.tags)
    source, *others = (_name(one) for one in wanted if one is not None)
    is_row = source in there and not there.isdisjoint(others)
    return not there or (not is_row and "source" in {*there, source})


def source_of(trained: Trained) -> Column:
    return trained.audio if isinstance(trained, Recordings) else trained.source
