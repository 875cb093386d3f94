"""Files that are given to a trained model: in the forms and with the columns of training."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transduce.automatic.given import (
    Trained,
    columns_as_trained,
    given_file,
    has_columns,
    trained_on,
)
from transduce.batch_inference.inputs import column_of_sources, read_table, table_given
from transduce.cli.input import read_lines_of, read_recordings, read_requests
from transduce.errors import DataError
from transduce.recipe import Columns, ParallelFiles, Recordings, Where
from transduce.recipe.corpus import conditions

NAMED = Columns(file="pairs.tsv", source="en", target="de")
TURNED = Columns(file="pairs.tsv", source=1, target=0)
ROWS = [("un", "one"), ("deux", "two"), ("trois", "three")]  # German first, so to speak


def sources(file: Path, trained: Trained | None = None) -> list[str]:
    requests = read_requests(None, file, "", [], [], trained)
    return [source for request in requests for source in request["sources"]]


def written(file: Path, header: bool = True, sign: str = "\t") -> Path:
    rows = [("de", "en"), *ROWS] if header else ROWS
    file.write_text("".join(f"{sign.join(row)}\n" for row in rows), "utf-8")
    return file


@pytest.mark.parametrize("sign", ["\t", ",", ";"])
def test_sources_are_in_the_column_of_training(tmp_path: Path, sign: str) -> None:
    ending = "tsv" if sign == "\t" else "csv"
    with_names = written(tmp_path / f"a.{ending}", sign=sign)
    without = written(tmp_path / f"b.{ending}", header=False, sign=sign)
    assert sources(with_names) == ["un", "deux", "trois"]
    assert sources(with_names, NAMED) == ["one", "two", "three"]
    assert sources(without, TURNED) == ["one", "two", "three"]
    (_, targets), *_ = read_lines_of(with_names, None, trained=NAMED)
    assert targets == ["un", "deux", "trois"]
    (ones, targets), *_ = read_lines_of(without, None, trained=TURNED)
    assert (ones, targets) == (["one", "two", "three"], ["un", "deux", "trois"])
    # A batch job reads the same column.
    path, given = table_given(str(with_names), NAMED)
    assert read_table([path], column_of_sources(given, NAMED)).place == 1
    path, given = table_given(str(without), TURNED)
    table = read_table([path], column_of_sources(given, TURNED))
    assert (table.kind, table.place, table.header) == ("tsv" if sign == ";" else ending, 1, "")
    # Where it is unclear whether there is a header, the first column has no name.
    assert column_of_sources(given, TURNED.model_copy(update={"source": 0})) is None


def test_a_table_with_sources_alone(tmp_path: Path) -> None:
    (tmp_path / "new.tsv").write_text("un\ndeux\n", "utf-8")
    for trained in (TURNED, NAMED):
        assert sources(tmp_path / "new.tsv", trained) == ["un", "deux"]
    tagged = TURNED.model_copy(update={"tags": 0, "target": 2})  # no tags are left
    assert sources(tmp_path / "new.tsv", tagged) == ["un", "deux"]
    (tmp_path / "new.jsonl").write_text('{"text": "un"}\n', "utf-8")
    assert sources(tmp_path / "new.jsonl", NAMED) == ["un"]


def test_what_cannot_be_told_is_asked(tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    other.write_text("english\tgerman\none\tun\ntwo\tdeux\n", "utf-8")
    with pytest.raises(DataError, match=r"columns english, german, and .* on the column en; call"):
        sources(other, NAMED)
    with pytest.raises(DataError, match=r"trained on the columns en and de; call them so"):
        next(read_lines_of(other, None, trained=NAMED))
    bare = written(tmp_path / "bare.tsv", header=False)
    with pytest.raises(DataError, match=r"2 columns without a header, .* write a header above"):
        sources(bare, NAMED)
    (tmp_path / "single.tsv").write_text("one\ntwo\n", "utf-8")
    with pytest.raises(DataError, match=r"^single\.tsv has one column without a header, and the"):
        next(read_lines_of(tmp_path / "single.tsv", None, trained=NAMED))
    third = Columns(file="pairs.tsv", source=2, target=1)
    with pytest.raises(DataError, match=r"on the column 2 \(counted from 0\); give it these"):
        sources(bare, third)
    (tmp_path / "x.zip").touch()
    with pytest.raises(DataError, match=r"x\.zip is an archive; unpack it"):
        sources(tmp_path / "x.zip", NAMED)


def test_forms_of_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    array = tmp_path / "new.json"
    array.write_text(json.dumps([{"de": de, "en": en} for de, en in ROWS]), "utf-8")
    assert sources(array, NAMED) == ["one", "two", "three"]
    with pytest.raises(DataError, match=r"^new\.json has the columns de, en, and the model"):
        sources(array, NAMED.model_copy(update={"source": "fr"}))
    assert "one JSON array of 3 objects; written as transduce-new.jsonl" in capsys.readouterr().err
    (tmp_path / "wide.txt").write_bytes("un\ndeux\n".encode("utf-16"))
    assert sources(tmp_path / "wide.txt") == ["un", "deux"]
    with gzip.open(tmp_path / "packed.txt.gz", "wt", encoding="utf-8") as file:
        file.write("un\ndeux\n")
    assert sources(tmp_path / "packed.txt.gz") == ["un", "deux"]
    with gzip.open(tmp_path / "packed.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("de\ten\nun\tone\n")
    assert sources(tmp_path / "packed.tsv.gz", NAMED) == ["one"]


def test_lines_are_sources_unless_training_had_such_a_table(tmp_path: Path) -> None:
    lines = [f"{de} {number} ||| {en}" for number in range(20) for de, en in ROWS]
    text = tmp_path / "new.txt"
    text.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    assert sources(text, TURNED) == lines
    made = TURNED.model_copy(update={"file": "transduce-pairs.tsv"})
    assert sources(text, made)[:2] == ["one", "two"]
    (ones, _), *_ = read_lines_of(text, None, trained=TURNED)  # pairs are in columns
    assert ones[:2] == ["one", "two"]
    tabs = written(tmp_path / "new.dev", header=False)
    assert sources(tabs, TURNED) == ["one", "two", "three"]
    tabs = written(tmp_path / "tabs.txt", header=False)
    assert sources(tabs, TURNED) == ["un\tone", "deux\ttwo", "trois\tthree"]
    said = TURNED.model_copy(update={"format": "tsv"})  # so training read a file of any name
    assert sources(tabs, said) == ["one", "two", "three"]


def test_objects_are_requests_or_rows_of_training(tmp_path: Path) -> None:
    file = tmp_path / "new.jsonl"
    file.write_text('{"source": "un", "prefix": "o"}\n', "utf-8")
    trained = Columns(file="pairs.jsonl", source="source", target="target")
    (request,) = read_requests(None, file, "", [], [], trained)
    assert request == {"sources": ["un"], "prefix": ["o"]}
    file.write_text("no object\n", "utf-8")
    with pytest.raises(DataError, match=r"new\.jsonl:1: not valid JSON"):
        sources(file, NAMED)
    file.write_text('{"source": "un", "target": "one"}\n', "utf-8")
    (request,) = read_requests(None, file, "", [], [], trained)
    assert request == {"sources": ["un"]}


def test_recordings_of_a_table_start_at_its_folder(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    table = tmp_path / "new.tsv"
    table.write_text("id\tpath\n1\ta.wav\n", "utf-8")
    trained = Recordings(file="x.tsv", audio="path", target="text")
    assert list(read_recordings(None, table, trained)) == [[str(tmp_path / "a.wav")]]
    (tmp_path / "list.txt").write_text("a.wav\n", "utf-8")
    assert list(read_recordings(None, tmp_path / "list.txt", trained)) == [["a.wav"]]


@pytest.mark.parametrize("wanted", [["en", "de"], [1, 0]])
def test_names_of_a_header_are_known_where_they_are_no_usual_ones(
    tmp_path: Path, wanted: list[Any]
) -> None:
    table = tmp_path / "t.tsv"
    table.write_text("de\ten\nun\tone\n", "utf-8")
    assert columns_as_trained(given_file(table, None), wanted) == wanted


def test_a_column_of_parts_may_be_missing(tmp_path: Path) -> None:
    given = given_file(written(tmp_path / "t.tsv"), None)
    for column, there in (("de", True), ("split", False), (1, True), (2, False)):
        where = conditions(Where(column=column, value="test"))
        assert has_columns(given, where) is there
    (tmp_path / "t.jsonl").write_text('{"de": "un", "en": "one"}\n', "utf-8")
    numbered = conditions(Where(column=1, value="test"))  # objects have names alone
    assert not has_columns(given_file(tmp_path / "t.jsonl", None), numbered)


def test_the_columns_of_training_are_those_of_any_part_that_is_a_table() -> None:
    lines = ParallelFiles(source="a.en", target="a.de")
    for parts, expected in (((lines, None, NAMED), NAMED), ((NAMED, lines, None), NAMED)):
        data = SimpleNamespace(**dict(zip(("train", "valid", "test"), parts, strict=True)))
        recipe: Any = SimpleNamespace(data=data)
        assert trained_on(recipe) == expected
    data = SimpleNamespace(train=TURNED, valid=None, test=NAMED)
    assert trained_on(cast("Any", SimpleNamespace(data=data))) == NAMED  # as it is evaluated
    data = SimpleNamespace(train=lines, valid=lines, test=None)
    assert trained_on(cast("Any", SimpleNamespace(data=data))) is None


def test_columns_of_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {"id": [1, 2], "translation": [{"de": de, "en": en} for de, en in ROWS[:2]]}
    parquet.write_table(arrow.table(table), tmp_path / "t.parquet")
    trained = Columns(file="x.parquet", source="translation.en", target="translation.de")
    assert sources(tmp_path / "t.parquet", trained) == ["one", "two"]
    with pytest.raises(DataError, match=r"columns id, translation, translation\.de, translation"):
        sources(tmp_path / "t.parquet", NAMED)
