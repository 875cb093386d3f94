"""Parquet files, which need the optional package pyarrow: opening them, and columns of text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.errors import DataError, load_package
from transduce.storage.positions import Version, place_at


@dataclass(frozen=True)
class RowGroup:
    """A row group of a Parquet file, to be read by position."""

    number: int
    first: int
    """Rows of the file before it."""
    version: Version


SMALL = 1 << 16  # bytes read ahead of a remote file, whose columns are read here and there


def load_pyarrow(why: str) -> Any:
    """The package, with its module parquet. Raises DataError where it is missing."""
    load_package("pyarrow.parquet", "parquet", why, DataError)
    return load_package("pyarrow", "parquet", why, DataError)


@contextmanager
def opened_parquet(path: str, name: str = "") -> Iterator[Any]:
    """A ParquetFile, called `name` in messages. Raises DataError where it cannot be opened."""
    name = name or path
    pyarrow = load_pyarrow(name)
    place = place_at(path)
    source = path if isinstance(place, Path) else place.open("rb", buffering=SMALL)
    try:
        file = pyarrow.parquet.ParquetFile(source)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            f"{name} is not a Parquet file, or it is damaged ({reason_of(error)}); download it "
            f"again"
        ) from None
    with file:
        yield file


def check_parquet_column(
    file: Any,
    column: str,
    name: str,
    numbers: bool = False,
    labels: bool = False,
    words: bool = True,
) -> None:
    """Raise DataError unless there is one such column, or such a field of a column, and it holds
    text or what is allowed: numbers, or of labels truth values, too; lists of words."""
    schema, kinds = file.schema_arrow, load_pyarrow(name).types
    if schema.names.count(column) > 1:
        raise DataError(f"{name}: there are several columns {column}; rename one of them")
    kind = type_of_column(schema, column, kinds)
    if kind is None:
        there = ", ".join(schema.names)
        raise DataError(f"{name}:1: there is no column {column}; there are: {there}")
    inner = kind
    if words and (kinds.is_list(inner) or kinds.is_large_list(inner)):
        inner = inner.value_type
    inner = inner.value_type if kinds.is_dictionary(inner) else inner
    text = kinds.is_string(inner) or kinds.is_large_string(inner) or kinds.is_null(inner)
    number = (numbers or labels) and (kinds.is_integer(inner) or kinds.is_floating(inner))
    if not text and not number and not (labels and kinds.is_boolean(inner)):
        raise DataError(f"{name}: the column {column} holds {kind}, not text; choose another")


def type_of_column(schema: Any, column: str, kinds: Any) -> Any:
    """The type of a column; of translation.en, that of the field of a column. None: there is none.

    kinds: the module pyarrow.types."""
    if column in schema.names:
        return schema.field(column).type
    outer, _, inner = column.partition(".")
    if outer not in schema.names or not kinds.is_struct(schema.field(outer).type):
        return None
    fields = schema.field(outer).type
    place = fields.get_field_index(inner)
    return None if place < 0 else fields.field(place).type


def reason_of(error: Exception) -> str:
    """What an error of pyarrow says, in one line."""
    return " ".join(str(error).split())[:200]
