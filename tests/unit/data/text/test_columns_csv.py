"""CSV files and integer labels: the cells are those of Python's own writer, errors have a line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.text.columns import csv_records
from transduce.data.text.pairs import read_pairs
from transduce.errors import DataError
from transduce.recipe import Columns

CELLS = st.text(st.sampled_from('ab ,"\n\té'), max_size=6)


def pairs(folder: Path, content: str | bytes, **columns: object) -> list[tuple[int, str, str]]:
    raw = content.encode() if isinstance(content, str) else content
    (folder / "a.csv").write_bytes(raw)
    corpus = Columns.model_validate({"file": "a.csv", **columns})
    return [(one.line, one.source, one.target) for one in read_pairs(corpus, str(folder))]


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), min_size=1, max_size=6))
def test_what_python_writes_is_read_again(table: list[list[str]]) -> None:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(table)
    lines = written.getvalue().split("\n")[:-1]
    found = list(csv_records(lines, "a.csv"))
    assert [cells for _, cells in found] == table
    # A record begins behind the line breaks of all records before it.
    starts = [1 + sum("".join(row).count("\n") + 1 for row in table[:i]) for i in range(len(table))]
    assert [line for line, _ in found] == starts


def test_cells_hold_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    content = 'one,eins\r\n"two, three","zwei ""drei"""\r\n\r\n"a\r\nb",c\r\n5" disk,d\r\n'
    assert pairs(tmp_path, content) == [
        (1, "one", "eins"),
        (2, "two, three", 'zwei "drei"'),
        (4, "a\nb", "c"),
        (6, '5" disk', "d"),
    ]


def test_columns_have_names_or_numbers(tmp_path: Path) -> None:
    content = 'number,"text, long",label\n1,tea,good\n2,"coffee, cold",bad\n'
    named = {"source": "text, long", "target": "label"}
    assert pairs(tmp_path, content, **named) == [(2, "tea", "good"), (3, "coffee, cold", "bad")]
    assert pairs(tmp_path, content, source=1, target=2) == [
        (2, "tea", "good"),
        (3, "coffee, cold", "bad"),
    ]
    assert pairs(tmp_path, content, source=1, target=2, header=False)[0] == (
        1,
        "text, long",
        "label",
    )


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ('a,b\nc,"d\ne,f\n', {}, r"a\.csv:2: a quote that begins here is not closed"),
        ('a,b\nc,"d"e\n', {}, r"a\.csv:2: a closing quote is followed by text"),
        ("a,b\nHello, tea,c\n", {}, r"a\.csv:2: the line has 3 columns .* the first has 2; put"),
        ("a,b,c\nd,e\n", {}, r"a\.csv:2: the line has 2 columns .* the first has 3; put"),
        ("a,b\n\n\nc\n", {}, r"a\.csv:4: the line has 1 column "),
        ("a\nb\n", {}, r"a\.csv:1: the line has 1 column \(separated by commas\), but column 1"),
        ("a,b\nc,d\n", {"source": "x"}, r"there is no column x; there are: a, b"),
        ('a,b\nc,"' + "d\n" * 200_000, {}, r"a\.csv:2: a cell that begins here has more than"),
        (b"a,b\nc,\xff\n", {}, r"a\.csv:2: byte 3 of the line"),
    ],
)
def test_a_bad_row_is_named_by_its_line(
    tmp_path: Path, content: str | bytes, columns: dict[str, object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        pairs(tmp_path, content, **columns)


@pytest.mark.parametrize("form", ["jsonl", "parquet", "csv"])
def test_labels_may_be_integers(tmp_path: Path, form: str) -> None:
    rows = [("good tea", 1), ("cold tea", 0), ("no tea", -1)]
    path = tmp_path / f"a.{form}"
    if form == "jsonl":
        lines = [json.dumps({"source": text, "target": label}) for text, label in rows]
        path.write_text("\n".join(lines))
    elif form == "csv":
        path.write_text("source,target\n" + "".join(f"{text},{label}\n" for text, label in rows))
    else:
        texts, labels = zip(*rows, strict=True)
        table = pyarrow.table({"source": texts, "target": pyarrow.array(labels, pyarrow.int8())})
        pyarrow.parquet.write_table(table, path)
    corpus = Columns(file=path.name, source="source", target="target")
    found = [(pair.source, pair.target) for pair in read_pairs(corpus, str(tmp_path))]
    assert found == [(text, str(label)) for text, label in rows]


@pytest.mark.parametrize(
    "record",
    [
        '{"source": 1, "target": "a"}',
        '{"source": "a", "target": 1.0}',
        '{"source": "a", "target": true}',
        '{"source": "a", "target": [1]}',
    ],
)
def test_other_values_are_not_taken_for_labels(tmp_path: Path, record: str) -> None:
    (tmp_path / "a.jsonl").write_text(record)
    with pytest.raises(DataError, match="not text"):
        list(read_pairs(Columns(file="a.jsonl"), str(tmp_path)))
