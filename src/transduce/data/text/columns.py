"""Files with columns for source and target: TSV, CSV, JSONL, Parquet, CoNLL-U, CoNLL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from transduce.data.text.conll import read_conll
from transduce.data.text.conllu import COLUMNS, read_sentences
from transduce.data.text.csv_rows import csv_records
from transduce.data.text.files import locate, read_lines
from transduce.data.text.header import LOOKED_AT, FirstLine, first_line
from transduce.errors import DataError
from transduce.recipe import Column, Columns

FORMATS = (".tsv", ".csv", ".jsonl", ".parquet", ".conllu", ".conll")
NUMBERED = (".tsv", ".csv")  # formats whose columns may be given by number
PARQUET_ROWS = 8192
ADVICE = ("write header: false", "write header: true, or name the columns")

Rows = Iterator[tuple[int, list[str]]]
"""Line numbers from 1, and the text of each wanted column."""

Say = Callable[[str], object]
"""Takes a sentence about what was assumed."""


def format_of(name: str, given: str | None = None) -> str:
    """The format that is given, or else by the file name, without .gz or .xz; as a suffix.

    Raises DataError for an unknown one.
    """
    packed = Path(name).suffix in (".gz", ".xz")
    suffix = f".{given}" if given else Path(Path(name).stem if packed else name).suffix
    if suffix not in FORMATS:
        raise DataError(
            f"{name}: the format is not clear from the name: say it, as in format: tsv, or end the "
            f"name in {', '.join(FORMATS)} (and .gz or .xz where it is compressed)"
        )
    if packed and suffix == ".parquet":
        raise DataError(f"{name}: Parquet is compressed by itself; decompress the file")
    return suffix


def read_columns(name: str, folder: str | None, corpus: Columns, say: Say | None = None) -> Rows:
    """Sources, targets and, where the corpus has them, tags, whatever the format of a file.

    All columns of a row are read at once, so that one check decides whether there is a header.
    Raises DataError.
    """
    kind = format_of(name, corpus.format)
    if kind == ".conllu":
        return _conllu_rows(name, folder, _names(name, corpus, "form", "upos"))
    tags = [] if corpus.tags is None else [corpus.tags]
    if kind == ".conll":
        return _conll_rows(name, folder, [corpus.source, corpus.target, *tags])
    if kind in NUMBERED:
        wanted = [corpus.source, corpus.target, *tags]
        return read_rows(name, folder, wanted, corpus.format, corpus.header, say=say)
    names = _names(name, corpus, "source", "target")
    # The targets of a classifier may be integers.
    return read_rows(name, folder, names, corpus.format, integers=(names[1],))


def read_rows(
    name: str,
    folder: str | None,
    wanted: Sequence[Column],
    given: str | None = None,
    header: bool | None = None,
    numbers: bool = False,
    integers: Sequence[str] = (),
    say: Say | None = None,
    advice: tuple[str, str] = ADVICE,
) -> Rows:
    """The wanted columns of a table; with `numbers`, JSONL and Parquet may hold them too, and in
    the columns `integers` integers.

    given: the format, where the name does not say it. header: whether TSV and CSV begin with one;
    None: decided by their first lines, and `say` is told of it.
    """
    kind = format_of(name, given)
    if kind in NUMBERED:
        lines = read_lines(name, folder, table=True)
        if kind == ".csv":
            records = csv_records(lines, name)
        else:
            records = ((line, text.split("\t")) for line, text in enumerate(lines, start=1))
        separator = "commas" if kind == ".csv" else "tabs"
        named = [column for column in wanted if isinstance(column, str)]
        if named and header is False:
            raise DataError(
                f"{name}: header: false says that there are no column names, but {named[0]} is "
                f"one; give its number, or leave header out"
            )
        names, records = without_header(name, records, True if named else header, say, advice)
        places = [
            column if isinstance(column, int) else _column(name, column, names or [])
            for column in wanted
        ]
        return _numbered_rows(name, records, places, separator)
    keys = [str(column) for column in wanted]
    read = _jsonl_rows if kind == ".jsonl" else _parquet_rows
    return read(name, folder, keys, numbers, integers)


def without_header(
    name: str,
    records: Rows,
    header: bool | None = None,
    say: Say | None = None,
    advice: tuple[str, str] = ADVICE,
) -> tuple[list[str] | None, Rows]:
    """The header of a file and the records after it; None and all records, where it has none.

    The one place that decides this. header: what the user says of it. `say` is told what was
    assumed, and `advice` how to say otherwise: that it is data, or a header.
    """
    ahead: list[tuple[int, list[str]]] = []
    problem: DataError | None = None
    try:
        for record in records:
            ahead.append(record)
            if header is not None or len(ahead) > LOOKED_AT:
                break
    except DataError as error:  # it is raised when its turn comes: a limit may end before
        problem = error

    def rest(start: int) -> Rows:
        yield from ahead[start:]
        if problem is not None:
            raise problem
        yield from records

    if not ahead:
        return None, rest(0)
    first = ahead[0][1]
    found = FirstLine(header is True)
    if header is None:
        found = first_line(first, [fields for _, fields in ahead[1:]])
        if say is not None and (sentence := found.sentence(name, first, *advice)):
            say(sentence)
    return (first, rest(1)) if found.is_header else (None, rest(0))


def _numbered_rows(name: str, records: Rows, places: Sequence[int], separator: str) -> Rows:
    """The cells of each record in these places."""
    for line, fields in records:
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
            f"here ({error}): pip install '.[parquet]'"
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


def _conll_rows(name: str, folder: str | None, columns: list[Column]) -> Rows:
    for column in columns:
        if isinstance(column, str):
            raise DataError(
                f"{name}: the columns of CoNLL have no names, so there is no {column}; give its "
                f"number, from 0"
            )
    wanted = [int(column) for column in columns]
    yield from read_conll(read_lines(name, folder, table=True), name, wanted)


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
