"""Parquet files of a batch job, read by row groups; needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transduce.data.text.parquet import (
    check_parquet_column,
    load_pyarrow,
    opened_parquet,
    reason_of,
)
from transduce.errors import DataError


def column_names(path: str, source: str) -> tuple[str, ...]:
    """The columns; of the one with sources it is checked that it holds text. Raises DataError."""
    with opened_parquet(path) as file:
        names = tuple(file.schema_arrow.names)
        for name in names:
            if names.count(name) > 1:
                raise DataError(f"{path}: there are several columns {name}; rename one of them")
        if source in names:
            check_parquet_column(file, source, path, words=False)
        return names


def row_groups(path: str) -> list[int]:
    """The number of rows of each row group."""
    with opened_parquet(path) as file:
        return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]


def read_batches(path: str, first: int, rows: int, size: int) -> Iterator[tuple[Any, str]]:
    """Record batches of at most `size` rows, from row `first` on, and what is wrong with one.

    A row group that is damaged comes as rows of nulls, with the reason.
    """
    pyarrow = load_pyarrow(path)
    with opened_parquet(path) as file:
        begin, left = first - 1, rows
        for group in range(file.metadata.num_row_groups):
            inside = file.metadata.row_group(group).num_rows
            if begin >= inside:
                begin -= inside
                continue
            wanted = min(left, inside - begin)
            done = 0
            try:
                for batch in _slices(file, group, begin, wanted, size):
                    done += batch.num_rows
                    yield batch, ""
            except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
                schema = file.schema_arrow
                for start in range(done, wanted, size):
                    count = min(size, wanted - start)
                    nulls = [pyarrow.nulls(count, field.type) for field in schema]
                    names = pyarrow.schema([field.with_nullable(True) for field in schema])
                    batch = pyarrow.RecordBatch.from_arrays(nulls, schema=names)
                    yield batch, f"its row group is damaged ({reason_of(error)})"
            left -= wanted
            begin = 0
            if not left:
                return
    raise DataError(f"{path} has fewer rows than when the job was started; restore the file")


def _slices(file: Any, group: int, begin: int, wanted: int, size: int) -> Iterator[Any]:
    """The rows of one row group from `begin` on; not more than one batch in memory."""
    for batch in file.iter_batches(size, row_groups=[group]):
        if begin >= batch.num_rows:
            begin -= batch.num_rows
            continue
        part = batch.slice(begin, wanted)
        begin = 0
        wanted -= part.num_rows
        yield part
        if not wanted:
            return


def texts_of(batch: Any, column: str) -> list[str | None]:
    """The values of a column of text; None for null, a lone surrogate where it is not UTF-8."""
    values = batch.column(column)
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError:
        return [_text(value) for value in values]


def _text(value: Any) -> str | None:
    try:
        return None if value.as_py() is None else str(value.as_py())
    except UnicodeDecodeError:
        return "\udcff"


def plain_rows(batch: Any) -> list[list[Any]]:
    """The rows of a batch as Python values; what is not UTF-8 with replacement characters."""
    columns = []
    for values in batch.columns:
        try:
            columns.append(values.to_pylist())
        except UnicodeDecodeError:
            columns.append([_replaced(value) for value in values])
    return [list(row) for row in zip(*columns, strict=True)]


def _replaced(value: Any) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError:
        return value.as_buffer().to_pybytes().decode("utf-8", "replace")


class ParquetTable:
    """A Parquet file that is being written: a row group for each group of rows."""

    def __init__(self, path: Path, names: Sequence[str], added: Sequence[tuple[str, str]]) -> None:
        """`added`: the columns of outputs and their kinds: text, score or nbest."""
        self.pyarrow = load_pyarrow("--format parquet")
        kinds = {
            "text": self.pyarrow.string(),
            "score": self.pyarrow.float64(),
            "nbest": self.pyarrow.list_(
                self.pyarrow.struct(
                    [("text", self.pyarrow.string()), ("score", self.pyarrow.float64())]
                )
            ),
        }
        self.path = path
        self.names = list(names)
        self.added = [self.pyarrow.field(name, kinds[kind]) for name, kind in added]
        self.writer: Any = None

    def write(self, carried: Any, rows: list[list[Any]], outputs: list[list[Any]]) -> None:
        """`carried`: a record batch whose columns are kept as they are; None: texts in `rows`."""
        pyarrow = self.pyarrow
        if carried is None:
            columns = [pyarrow.array(list(c), pyarrow.string()) for c in zip(*rows, strict=True)]
            fields = [pyarrow.field(name, pyarrow.string()) for name in self.names]
        else:
            columns = list(carried.columns)
            fields = [field.with_nullable(True) for field in carried.schema]
        more = zip(self.added, zip(*outputs, strict=True), strict=True)
        columns += [pyarrow.array(list(values), field.type) for field, values in more]
        schema = pyarrow.schema([*fields, *self.added])
        if self.writer is None:
            self.writer = pyarrow.parquet.ParquetWriter(self.path, schema)
        self.writer.write_batch(pyarrow.RecordBatch.from_arrays(columns, schema=schema))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
