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
    file: Any, column: str, name: str, integers: bool = False, floats: bool = False
) -> None:
    """Raise DataError unless there is one such column, and it holds text, or such numbers."""
    schema, kinds = file.schema_arrow, load_pyarrow(name).types
    if schema.names.count(column) > 1:
        raise DataError(f"{name}: there are several columns {column}; rename one of them")
    kind = schema.field(column).type
    inner = kind.value_type if kinds.is_dictionary(kind) else kind
    text = kinds.is_string(inner) or kinds.is_large_string(inner)
    number = (integers and kinds.is_integer(inner)) or (floats and kinds.is_floating(inner))
    if not text and not number:
        raise DataError(f"{name}: the column {column} holds {kind}, not text; choose another")


def reason_of(error: Exception) -> str:
    """What an error of pyarrow says, in one line."""
    return " ".join(str(error).split())[:200]
