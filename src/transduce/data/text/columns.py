"""Files with columns for source and target: TSV, CSV, JSONL, Parquet, CoNLL-U."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from transduce.data.text.conllu import COLUMNS, read_sentences
from transduce.data.text.csv_rows import csv_records
from transduce.data.text.files import locate, read_lines
from transduce.errors import DataError
from transduce.recipe import Column, Columns

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet", ".conllu")
NUMBERED = (".tsv", ".csv")  # formats whose columns may be given by number
PARQUET_ROWS = 8192

Rows = Iterator[tuple[int, list[str]]]
"""Line numbers from 1, and the text of each wanted column."""


def format_of(name: str) -> str:
    """The format by the file name, without .gz or .xz. Raises DataError for an unknown one."""
    packed = Path(name).suffix in (".gz", ".xz")
    suffix = Path(Path(name).stem if packed else name).suffix
    if suffix not in FORMATS:
        raise DataError(
            f"{name}: the format is not clear from the name; it must end in {', '.join(FORMATS)} "
            "(and .gz or .xz where it is compressed)"
        )
    if packed and suffix == ".parquet":
        raise DataError(f"{name}: Parquet is compressed by itself; decompress the file")
    return suffix


def read_columns(name: str, folder: str | None, corpus: Columns) -> Rows:
    """Sources, targets and, where the corpus has them, tags, whatever the format of a file.

    All columns of a row are read at once, so that one check decides whether there is a header.
    Raises DataError.
    """
    kind = format_of(name)
    if kind == ".conllu":
        return _conllu_rows(name, folder, _names(name, corpus, "form", "upos"))
    if kind in NUMBERED:
        tags = [] if corpus.tags is None else [corpus.tags]
        return read_rows(name, folder, [corpus.source, corpus.target, *tags])
    names = _names(name, corpus, "source", "target")
    # The targets of a classifier may be integers.
    return read_rows(name, folder, names, integers=(names[1],))


def read_rows(
    name: str,
    folder: str | None,
    wanted: Sequence[Column],
    numbers: bool = False,
    integers: Sequence[str] = (),
) -> Rows:
    """The wanted columns of a table; with `numbers`, JSONL and Parquet may hold them too, and in
    the columns `integers` integers.
    """
    kind = format_of(name)
    if kind in NUMBERED:
        lines = read_lines(name, folder, table=True)
        if kind == ".csv":
            return _numbered_rows(name, csv_records(lines, name), wanted, "commas")
        split = ((line, text.split("\t")) for line, text in enumerate(lines, start=1))
        return _numbered_rows(name, split, wanted, "tabs")
    keys = [str(column) for column in wanted]
    read = _jsonl_rows if kind == ".jsonl" else _parquet_rows
    return read(name, folder, keys, numbers, integers)


def _numbered_rows(name: str, records: Rows, wanted: Sequence[Column], separator: str) -> Rows:
    """The wanted cells of each record; where a column is named, the first record is the header."""
    header = any(isinstance(column, str) for column in wanted)
    places: list[int] = [] if header else [int(column) for column in wanted]
    for line, fields in records:
        if header:
            header = False
            places = [
                column if isinstance(column, int) else _column(name, column, fields)
                for column in wanted
            ]
            continue
        for place in places:
            if not 0 <= place < len(fields):
                noun = "column" if len(fields) == 1 else "columns"
                raise DataError(
                    f"{name}:{line}: the line has {len(fields)} {noun} (separated by {separator}), "
                    f"but column {place} (counted from 0) is asked for; correct the line or the "
                    f"number"
                )
        yield line, [fields[place] for place in places]


def _jsonl_rows(
    name: str, folder: str | None, keys: list[str], numbers: bool, integers: Sequence[str]
) -> Rows:
    for line, text in enumerate(read_lines(name, folder, table=True), start=1):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name}:{line}: this is not valid JSON: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{name}:{line}: each line must be a JSON object, as in {{...}}")
        found = []
        for key in keys:
            if key not in record:
                there = ", ".join(record) or "none"
                raise DataError(f"{name}:{line}: there is no key {key}; there are: {there}")
            value = record[key]
            number = isinstance(value, int) or (numbers and isinstance(value, float))
            if number and not isinstance(value, bool) and (numbers or key in integers):
                value = str(value)
            if not isinstance(value, str):
                raise DataError(
                    f"{name}:{line}: the value of {key} is {json.dumps(value)[:40]}, not text"
                )
            if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
                raise DataError(
                    f"{name}:{line}: the value of {key} holds half of a surrogate pair, which is "
                    "not a character; correct the \\u escape"
                )
            found.append(value)
        yield line, found


def _parquet_rows(
    name: str, folder: str | None, keys: list[str], numbers: bool, integers: Sequence[str]
) -> Rows:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"{name} is a Parquet file, which needs the package pyarrow, and that cannot be loaded "
            f"here ({error}): pip install 'transduce[parquet]'"
        ) from None

    line = 0
    kinds = pyarrow.types
    try:
        with pyarrow.parquet.ParquetFile(locate(name, folder)) as file:
            schema = file.schema_arrow
            for key in keys:
                _column(name, key, schema.names)
                if schema.names.count(key) > 1:
                    raise DataError(f"{name}: there are several columns {key}; rename one of them")
                kind = schema.field(key).type
                inner = kind.value_type if kinds.is_dictionary(kind) else kind
                text = kinds.is_string(inner) or kinds.is_large_string(inner)
                integer = kinds.is_integer(inner) and (numbers or key in integers)
                if not text and not integer and not (numbers and kinds.is_floating(inner)):
                    raise DataError(f"{name}: the column {key} holds {kind}, not text")
            for batch in file.iter_batches(PARQUET_ROWS, columns=list(dict.fromkeys(keys))):
                columns = [batch.column(key).to_pylist() for key in keys]
                for values in zip(*columns, strict=True):
                    line += 1
                    yield line, ["" if value is None else str(value) for value in values]
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{name}: row {line + 1}: this is not a valid Parquet file, or it is damaged "
            f"({' '.join(str(error).split())})"
        ) from None
    if line == 0:
        raise DataError(f"{name} is empty; give a file with at least one row")


def _conllu_rows(name: str, folder: str | None, columns: list[str]) -> Rows:
    """The words of each sentence, and the wanted columns of them."""
    for column in columns:
        _column(name, column, list(COLUMNS))
    for sentence in read_sentences(read_lines(name, folder, table=True), name):
        yield sentence.line, [" ".join(sentence.column(column)) for column in columns]


def _names(name: str, corpus: Columns, source: str, target: str) -> list[str]:
    """Column names for a format without column numbers; TSV's default numbers mean the usual
    names.
    """
    found = [
        corpus.source if isinstance(corpus.source, str) else source,
        corpus.target if isinstance(corpus.target, str) else target,
    ]
    if corpus.tags is None:
        return found
    if not isinstance(corpus.tags, str):
        raise DataError(
            f"{name}: the column of tags is the number {corpus.tags}, but only TSV and CSV "
            f"have numbered columns; give its name"
        )
    return [*found, corpus.tags]


def _column(name: str, wanted: str, there: list[str]) -> int:
    if wanted not in there:
        raise DataError(f"{name}:1: there is no column {wanted}; there are: {', '.join(there)}")
    return there.index(wanted)
