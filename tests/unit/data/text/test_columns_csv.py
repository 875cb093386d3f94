"""CSV files and integer labels: the cells are those of Python's own writer, errors have a line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.data.text.columns import csv_records, read_columns
from transduce.data.text.pairs import ReadingCounts, read_pairs
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
        '{"source": true, "target": "a"}',
        '{"source": ["a", 1], "target": "a"}',
        '{"source": "a", "target": {"b": "c"}}',
        '{"source": "a", "target": [{"b": "c"}]}',
    ],
)
def test_other_values_are_no_text(tmp_path: Path, record: str) -> None:
    (tmp_path / "a.jsonl").write_text(record)
    with pytest.raises(DataError, match="not text"):
        list(read_pairs(Columns(file="a.jsonl"), str(tmp_path)))


NAN = float("nan")
VALUES: list[tuple[list[Any], list[str]]] = [
    (["nan", "NA", "None", "null"], ["nan", "NA", "None", "null"]),  # texts stay as they are
    (["a", None, "b", None], ["a", "", "b", ""]),
    ([1.0, 0.0, NAN, None], ["1", "0", "", ""]),  # what a data frame makes of integers with gaps
    ([4.5, 5.0, 3.0, 1.5], ["4.5", "5", "3", "1.5"]),
    ([True, False, True, None], ["true", "false", "true", ""]),
    ([["N", "V"], ["D"], [], None], ["N V", "D", "", ""]),
    ([[3, 0], [7], [1], [2]], ["3 0", "7", "1", "2"]),
]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("values", VALUES, ids=[str(values) for values, _ in VALUES])
def test_values_of_labels_and_of_those_that_are_missing(
    tmp_path: Path, form: str, values: tuple[list[Any], list[str]]
) -> None:
    given, expected = values
    rows = [{"source": "a", "target": value} for value in given]
    if form == "jsonl":
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    cells = [target for _, (_, target) in read_columns(f"a.{form}", str(tmp_path), BOTH)]
    assert cells == expected


BOTH = Columns(file="a", source="source", target="target")


@pytest.mark.parametrize("form", ["tsv", "csv"])
def test_words_for_what_is_missing_are_texts_in_a_table(tmp_path: Path, form: str) -> None:
    words = ["nan", "NA", "None", "null", "NaN", "N/A"]
    separator = {"tsv": "\t", "csv": ","}[form]
    lines = [separator.join(row) for row in [("source", "target"), *(("a", one) for one in words)]]
    (tmp_path / f"a.{form}").write_text("\n".join(lines))
    pairs = read_pairs(Columns(file=f"a.{form}", source="source"), str(tmp_path))
    assert [pair.target for pair in pairs] == words


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_fields_of_objects(tmp_path: Path, form: str) -> None:
    rows: list[dict[str, Any]] = [
        {"id": n, "translation": {"en": f"dogs {n}", "de": f"Hunde {n}"}} for n in range(3)
    ]
    rows.append({"id": 3, "translation": None})
    if form == "jsonl":
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    corpus = Columns(file=f"a.{form}", source="translation.de", target="translation.en")
    counts = ReadingCounts()
    pairs = [(pair.source, pair.target) for pair in read_pairs(corpus, str(tmp_path), counts)]
    assert pairs == [(f"Hunde {n}", f"dogs {n}") for n in range(3)]
    assert counts.empty_source == 1
    with pytest.raises(DataError, match=rf"a\.{form}:1: there is no (key|column) translation.fr"):
        list(read_pairs(corpus.model_copy(update={"target": "translation.fr"}), str(tmp_path)))


def test_a_key_with_a_dot_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a.b": "one", "a": {"b": "two"}, "target": "c"}\n')
    (pair,) = read_pairs(Columns(file="a.jsonl", source="a.b"), str(tmp_path))
    assert pair.source == "one"
