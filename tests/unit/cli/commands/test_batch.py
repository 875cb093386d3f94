"""The command batch: formats, columns, bad lines, mistakes, going on, array tasks."""

from __future__ import annotations

import csv
import errno
import gzip
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import Ended, Transduce, sentence
from transduce.batch_inference import inputs, rows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and locks")

SOURCES = ["ab", "b", "abcabc", "c", "bca", "a", "cc"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command sets these for its workers: they end with the test."""
    for name in ("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))


@pytest.fixture(scope="session")
def folder() -> Path:
    """A model over the letters a to d whose outputs are not empty."""
    return Path(__file__).parents[3] / "fixtures" / "models" / "translate"


@pytest.fixture
def job(transduce: Transduce, folder: Path, tmp_path: Path) -> Iterator[Any]:
    """batch with a few lines per shard, from `in.*` to `out`."""

    def run(pattern: str = "in.*", *more: object, model: Path = folder) -> Ended:
        given = ["--input", tmp_path / pattern, "--output", tmp_path / "out", "--workers", 2]
        return transduce("batch", model, *given, "--shard-lines", 3, *more)

    return run


def texts(transduce: Transduce, folder: Path, *more: object) -> list[str]:
    """What `run` gives for the sources."""
    return transduce("run", folder, *SOURCES, *more).lines


def parts(tmp_path: Path, ending: str) -> list[Path]:
    return sorted((tmp_path / "out").glob(f"part-*{ending}"))


def joined(tmp_path: Path, ending: str = ".txt") -> str:
    return "".join(path.read_text("utf-8") for path in parts(tmp_path, ending))


def errors(tmp_path: Path) -> list[dict[str, Any]]:
    files = sorted((tmp_path / "out" / "errors").glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def test_csv_in_csv_out(transduce: Transduce, folder: Path, tmp_path: Path, job: Any) -> None:
    rows = [["word", "note, long"], *([text, f'"{text}", said'] for text in SOURCES)]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    ended = job("in.csv", "--column", "word")
    assert ended.status == 0, ended.err
    found = []
    for part in parts(tmp_path, ".csv"):
        with part.open(newline="") as file:
            head, *body = csv.reader(file)
        assert head == ["word", "note, long", "output"]
        found += body
    outputs = texts(transduce, folder)
    assert found == [[*row, text] for row, text in zip(rows[1:], outputs, strict=True)]


def test_text_in_text_out_in_order(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    (tmp_path / "in.1.gz").write_bytes(gzip.compress("\n".join(SOURCES[:4]).encode()))
    (tmp_path / "in.2").write_text("\n".join(SOURCES[4:]) + "\n", "utf-8")
    ended = job()
    assert ended.status == 0, ended.err
    assert "3 of 3 shards, 7 lines in all" in ended.out
    assert "3/3 shards, 7/7 lines (100 %)" in ended.err
    assert len(parts(tmp_path, ".txt")) == 3
    assert joined(tmp_path).splitlines() == texts(transduce, folder)
    assert errors(tmp_path) == []
    again = job()
    assert again.status == 0
    assert "3 of 3 shards are finished already" in again.err


def test_settings_are_those_of_run(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(SOURCES), "utf-8")
    more = ["--sample", "--temperature", 2, "--seed", 5, "--max-length", 6]
    assert job("in.txt", *more, "--scores").status == 0
    found = [line.split("\t") for line in joined(tmp_path).splitlines()]
    assert [text for _, text in found] == texts(transduce, folder, *more)
    assert [text for _, text in found] != texts(transduce, folder)
    assert all(float(score) < 0 for score, _ in found)


def test_columns_of_a_table_are_carried_through(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    lines = "".join(f"{n}\t{source}\n" for n, source in enumerate(SOURCES))
    (tmp_path / "in.tsv").write_text("id\ttext\n" + lines, "utf-8")
    assert job("in.tsv", "--column", "text").status == 0
    found = [path.read_text("utf-8").splitlines() for path in parts(tmp_path, ".tsv")]
    assert {of_part[0] for of_part in found} == {"id\ttext\toutput"}
    reported = [line.split("\t") for of_part in found for line in of_part[1:]]
    expected = texts(transduce, folder)
    assert reported == [
        [str(n), s, t] for n, (s, t) in enumerate(zip(SOURCES, expected, strict=True))
    ]


CELLS = [
    "17.123456789", "1e-7", "1.10", "1e400", "-0.0", "007", " a ", "", "NaN", "x\u2028y", "\x0b",
]  # fmt: skip


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_tags_of_a_table_are_read_as_in_training(
    transduce: Transduce, tagged: Path, tmp_path: Path, kind: str
) -> None:
    rows = [("N", "ba"), ("V;PST", "ba"), ("", "ba"), ("V<", "ba"), ("V", ""), ("V;PTS", "ba")]
    sign = "," if kind == "csv" else "\t"
    table = tmp_path / f"in.{kind}"
    if kind == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        arrow = pytest.importorskip("pyarrow")
        columns = dict(zip(("features", "lemma"), map(list, zip(*rows, strict=True)), strict=True))
        parquet.write_table(arrow.table(columns), table)
    elif kind == "jsonl":
        lines = [json.dumps({"features": tags, "lemma": lemma}) for tags, lemma in rows]
        table.write_text("\n".join(lines), "utf-8")
    else:
        table.write_text("\n".join(map(sign.join, [("features", "lemma"), *rows])), "utf-8")

    def outputs(name: str, *more: object) -> list[str]:
        asked = ("--output", tmp_path / name, "--format", "jsonl", "--scores", *more)
        done = transduce("batch", tagged, "--input", table, *asked)
        assert done.status == 0, done.err
        text = (tmp_path / name / "part-000000.jsonl").read_text("utf-8")
        found = [json.loads(line) for line in text.splitlines()]
        return [f"{one['score'] or 0:.4f}\t{one['output']}" for one in found]

    def run(*sources: str) -> list[str]:
        return transduce("run", tagged, *sources, "--scores").lines

    found = outputs("rows")
    assert found[:3] == run("<N> ba", "<V> <PST> ba", "ba")
    assert found[3:] == 3 * ["0.0000\t"]
    said = (tmp_path / "rows" / "errors" / "part-000000.jsonl").read_text("utf-8")
    assert "the tag is 'V<'; it must be one word" in said
    assert "the source is empty" in said
    assert "the model has no tag PTS; did you mean PST?" in said
    assert outputs("all", "--tag", "V")[:4] == 4 * run("<V> ba")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("ending", [".tsv", ".csv"])
def test_carried_columns_are_the_same_bytes(
    tmp_path: Path, job: Any, ending: str, end: str
) -> None:
    mark = {".tsv": "\t", ".csv": ","}[ending]
    cells = [*CELLS, *(['"1,5"', '"say ""a"""', "b\tc"] if ending == ".csv" else ['"', "a,b"])]
    head = "id" + mark + ('"note, long"' if ending == ".csv" else '"note"') + mark + "word"
    lines = [f"{n}{mark}{cell}{mark}ab" for n, cell in enumerate(cells)]
    (tmp_path / f"in{ending}").write_bytes(end.join(["\ufeff" + head, *lines]).encode())
    assert job(f"in{ending}", "--column", "word", "--scores").status == 0
    files = [path.read_bytes().decode().split("\n") for path in parts(tmp_path, ending)]
    assert all(file[-1] == "" for file in files)
    assert {file[0] for file in files} == {f"{head}{mark}output{mark}score"}
    reported = [line for file in files for line in file[1:-1]]
    assert [line.rsplit(mark, 2)[0] for line in reported] == lines
    assert errors(tmp_path) == []


def test_carried_keys_are_the_same_bytes(tmp_path: Path, job: Any) -> None:
    values = [
        "17.123456789", "1e-7", "1.10", "1e400", "-0.0", "1E+2", '"\\u00e9\\/"', "[1.0,  2e3]",
        '{"output": 1e-7}', "null", '"\\ud800"', '"}"', "123456789012345678901234567890",
    ]  # fmt: skip
    lines = [f'{{"v" :{value},"source": "ab"' for value in values]
    (tmp_path / "in.jsonl").write_text("".join(f" {line} }} \r\n" for line in lines), "utf-8")
    assert job("in.jsonl").status == 0
    reported = joined(tmp_path, ".jsonl").splitlines()
    assert [line.rpartition(', "output": ')[0] for line in reported] == lines
    strict: Any = {"parse_constant": pytest.fail}
    assert all(json.loads(line, **strict)["output"] for line in reported)
    # In a table each value is as it was written there, and a string is its text.
    shutil.rmtree(tmp_path / "out")
    assert job("in.jsonl", "--format", "tsv").status == 0
    rows = [line.split("\t") for line in joined(tmp_path, ".tsv").splitlines()]
    shown = {'"\\u00e9\\/"': "\xe9/", "null": "", '"\\ud800"': "?", '"}"': "}"}
    assert [row[0] for row in rows if row[0] != "v"] == [shown.get(v, v) for v in values]
    shutil.rmtree(tmp_path / "out")
    assert job("in.jsonl", "--format", "csv").status == 0
    assert "\n17.123456789,ab," in joined(tmp_path, ".csv")
    assert "\n1e-7,ab," in joined(tmp_path, ".csv")


def test_objects_of_a_bad_line_keep_their_other_keys(tmp_path: Path, job: Any) -> None:
    (tmp_path / "in.jsonl").write_text(
        '{"source": "a", "n": 1.10, "output": 2, "score": 3}\n{"source": "b"}\n{}\n', "utf-8"
    )
    (tmp_path / "more.jsonl").write_text('{"source": "b"}\n', "utf-8")
    (tmp_path / "in.jsonl").rename(tmp_path / "z.jsonl")  # not the one that gives the columns
    more = ["--input", tmp_path / "z.jsonl", "--scores"]
    assert job("more.jsonl", *more).status == 0
    reported = joined(tmp_path, ".jsonl").splitlines()
    assert reported[1] == '{"source": "a", "n": 1.10, "output": "", "score": null}'
    assert reported[3] == '{"output": "", "score": null}'
    assert ["already" in one["reason"] for one in errors(tmp_path)] == [True, False]


def test_numbers_of_parquet_have_all_their_digits(tmp_path: Path, job: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    many = {"source": ["a", "b"], "x": [17.123456789, 1e-7], "y": [[1.5, float("nan")], None]}
    parquet.write_table(pyarrow.table(many), tmp_path / "in.parquet")
    assert job("in.parquet", "--format", "tsv").status == 0
    rows = [line.split("\t") for line in joined(tmp_path, ".tsv").splitlines()]
    assert [row[1:3] for row in rows[1:]] == [["17.123456789", "[1.5, null]"], ["1e-07", ""]]
    shutil.rmtree(tmp_path / "out")
    assert job("in.parquet", "--format", "jsonl").status == 0
    found = [json.loads(line) for line in joined(tmp_path, ".jsonl").splitlines()]
    assert [(one["x"], one["y"]) for one in found] == [(17.123456789, [1.5, None]), (1e-7, None)]


def test_a_table_without_header(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    (tmp_path / "in.tsv").write_text("".join(f"x\t{s}\n" for s in SOURCES), "utf-8")
    assert job("in.tsv", "--column", "1", "--format", "jsonl").status == 0
    found = [json.loads(line) for line in joined(tmp_path, ".jsonl").splitlines()]
    assert [one["output"] for one in found] == texts(transduce, folder)
    assert found[1] == {"column0": "x", "column1": "b", "output": found[1]["output"]}


def test_jsonl_keeps_every_key_and_bad_lines_cost_a_row(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "SAMPLE", 7)  # lines that give the columns
    good = [{"id": n, "of": [n], "source": source} for n, source in enumerate(SOURCES)]
    bad = ["{", "[]", '{"id": 1}', '{"source": 3}', "", '{"source": "\\ud800"}', '{"source": null}']
    bad += ['{"source": "a", "output": "mine"}']
    lines = [json.dumps(one) for one in good]
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, *bad, lines[0]]), "utf-8")
    ended = job("in.jsonl", "--nbest", 2)
    assert ended.status == 0, ended.err
    found = [json.loads(line) for line in joined(tmp_path, ".jsonl").splitlines()]
    assert [one["output"] for one in found] == [
        *(expected := texts(transduce, folder)),
        *[""] * len(bad),
        expected[0],
    ]
    assert [{key: one[key] for key in good[0]} for one in found[:7]] == good
    assert found[2]["nbest"][0]["text"] == expected[2]
    assert len(found[2]["nbest"]) == 2
    reported = errors(tmp_path)
    assert [one["line"] for one in reported] == list(range(8, 16))
    assert {one["output"] for one in reported} == {"empty"}
    for one, word in zip(
        reported,
        ["JSON", "object", "no key", "not text", "empty", "surrogate", "empty", "already"],
        strict=True,
    ):  # fmt: skip
        assert word in one["reason"]
    assert "8 lines have an empty output, 0 a warning" in ended.out


def test_bad_lines_of_text_cost_a_row(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    bad = [b"\xff\xff", b"", b"  ", b"a" * (rows.LONGEST + 1), b"ab" * 400]
    lines = [b"ab", *bad, b"\xff\xfe", b"b\r"]
    (tmp_path / "in.txt").write_bytes(b"\n".join(lines))
    assert job("in.txt").status == 0
    expected = texts(transduce, folder)
    assert joined(tmp_path).split("\n") == [expected[0], *[""] * 6, expected[1], ""]
    reported = {one["line"]: one["reason"] for one in errors(tmp_path)}
    assert list(reported) == [2, 3, 4, 5, 6, 7]
    for line, word in {2: "UTF-8", 3: "empty", 5: "100,001 char", 6: "800 tokens"}.items():
        assert word in reported[line] or "characters" in reported[line]


def test_blank_lines_are_for_batch_what_they_are_for_run(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    """A model that needs a source has nothing to say; a language model continues blanks."""
    language_model = folder.with_name("language_model")
    (tmp_path / "in.txt").write_text("\n  \nab\n\u00a0\n", "utf-8")
    for model, given in ((folder, []), (language_model, ["--max-length", 3, "--format", "jsonl"])):
        assert job("in.txt", *given, model=model).status == 0
        settings = [*given[:2], "--json"]
        reported = transduce("run", model, "--input", tmp_path / "in.txt", *settings).lines
        expected = [json.loads(line)["text"] for line in reported]
        if given:
            lines = joined(tmp_path, ".jsonl").splitlines()
            found = [json.loads(line)["output"] for line in lines]
        else:
            found = joined(tmp_path).splitlines()
        assert found == expected
        assert [one["line"] for one in errors(tmp_path)] == ([] if given else [1, 2, 4])
        shutil.rmtree(tmp_path / "out")


def test_rows_of_another_width_cost_a_row(tmp_path: Path, job: Any) -> None:
    content = b"a\t1\nb\nab\t2\t3\n\xff\t4\nc\t5\n"
    (tmp_path / "in.tsv").write_bytes(content)
    assert job("in.tsv").status == 0
    found = [line.split("\t") for line in joined(tmp_path, ".tsv").splitlines()]
    assert [row[:2] for row in found] == [
        ["a", "1"], ["b", ""], ["ab", "2"], ["\ufffd", "4"], ["c", "5"],
    ]  # fmt: skip
    assert [bool(row[2]) for row in found] == [True, False, False, False, True]
    assert [one["line"] for one in errors(tmp_path)] == [2, 3, 4]


def test_an_error_of_the_model_costs_a_row(
    tmp_path: Path, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transduce.tasks.transduce import Transducer

    run = Transducer.run

    def fail(self: Transducer, sources: list[str], **settings: Any) -> Any:
        if "cc" in sources:
            raise RuntimeError("cannot read cc")
        return run(self, sources, **settings)

    monkeypatch.setattr(Transducer, "run", fail)
    (tmp_path / "in.txt").write_text("ab\ncc\nb\nc\n", "utf-8")
    assert job("in.txt").status == 0
    assert [bool(line) for line in joined(tmp_path).splitlines()] == [True, False, True, True]
    (reported,) = errors(tmp_path)
    assert (reported["line"], "cannot read cc" in reported["reason"]) == (2, True)


def test_parquet_in_and_out(transduce: Transduce, folder: Path, tmp_path: Path, job: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    sources: list[Any] = [*SOURCES, None, ""]
    many = {"id": pyarrow.array(range(9), pyarrow.int16()), "source": sources, "list": [[1.5]] * 9}
    table = pyarrow.table(many)
    parquet.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    assert job("in.parquet").status == 0
    files = [parquet.read_table(path) for path in parts(tmp_path, ".parquet")]
    assert [file.num_rows for file in files] == [2, 2, 2, 3]  # row groups stay whole
    found = pyarrow.concat_tables(files)
    assert found.select(table.column_names).equals(table)
    expected = texts(transduce, folder)
    assert found["output"].to_pylist() == [*expected, "", ""]
    assert [one["line"] for one in errors(tmp_path)] == [8, 9]
    shutil.rmtree(tmp_path / "out")
    assert job("in.parquet", "--format", "text").status == 0
    assert joined(tmp_path).splitlines() == [*expected, "", ""]
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "in.txt").write_text("\n".join(SOURCES), "utf-8")
    assert job("in.txt", "--format", "parquet", "--scores").status == 0
    found = pyarrow.concat_tables([parquet.read_table(p) for p in parts(tmp_path, ".parquet")])
    assert found["source"].to_pylist() == SOURCES
    assert found["output"].to_pylist() == expected
    assert all(score < 0 for score in found["score"].to_pylist())


def test_a_large_row_group_is_cut_and_a_damaged_one_costs_its_rows(
    tmp_path: Path, job: Any
) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"source": [letter * 3 for letter in "abcabcabcabc"]})
    path = tmp_path / "in.parquet"
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    parquet.write_table(table, path, row_group_size=8, write_page_checksum=True, **options)
    column = parquet.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = column.data_page_offset
    end = start + column.total_compressed_size
    data[start:end] = b"\xff" * (end - start)
    path.write_bytes(data)
    assert job("in.parquet").status == 0
    files = [parquet.read_table(part) for part in parts(tmp_path, ".parquet")]
    assert [file.num_rows for file in files] == [3, 3, 2, 3, 1]
    outputs = pyarrow.concat_tables(files)["output"].to_pylist()
    assert [bool(one) for one in outputs] == [True] * 8 + [False] * 4
    reported = errors(tmp_path)
    assert [one["line"] for one in reported] == [9, 10, 11, 12]
    assert "row group is damaged" in reported[0]["reason"]


def test_mistakes_are_one_sentence_each(tmp_path: Path, job: Any) -> None:
    (tmp_path / "in.txt").write_text("ab\n", "utf-8")
    (tmp_path / "in.tsv").write_text("ab\tc\n", "utf-8")
    (tmp_path / "empty.txt").write_text("", "utf-8")
    whole = gzip.compress(os.urandom(1000) + b"\n")
    (tmp_path / "cut.txt.gz").write_bytes(whole[:500])
    (tmp_path / "key.jsonl").write_text('{"text": "ab"}\n', "utf-8")
    (tmp_path / "bad.parquet").write_text("no", "utf-8")
    (tmp_path / "two.jsonl").write_text('{"source": "ab", "output": "c"}\n', "utf-8")
    for arguments, expected in {
        ("none-*.gz",): r"no file matches .*none-\*\.gz",
        ("in.*",): "give files of one format",
        ("in.txt", "--column", "source"): "has no columns",
        ("in.tsv", "--column", "source"): "there is no column source; there are: ab, c",
        ("in.tsv", "--column", "2"): "there is no column 2",
        ("key.jsonl",): r"there is no column source; there are: text \(choose one with --column",
        ("two.jsonl",): "has a column output already",
        ("empty.txt",): "has no lines",
        ("cut.txt.gz",): "damaged or truncated",
        ("bad.parquet",): "not a Parquet file",
        ("in.txt", "--format", "xml"): "it must be one of text, tsv, csv, jsonl, parquet",
        ("in.txt", "--nbest", "2"): "give --format jsonl or parquet",
        ("in.txt", "--engine", "onnx"): "there are local, slurm, ray",
        ("in.txt", "--shard", "2/2"): "i from 0 to n-1",
        ("in.txt", "--beam", "0"): "beam is 0; it must be 1 or more",
        ("in.txt", "--tag", "de"): "trained without tags",
        (".",): "is a folder; give its files",
    }.items():
        assert re.search(expected, sentence(job(*arguments))), arguments
        assert not (tmp_path / "out" / "manifest.json").exists(), arguments
    assert "there is no folder" in sentence(job("in.txt", model=tmp_path / "none"))
    assert "is not a model folder" in sentence(job("in.txt", model=tmp_path))


def test_a_folder_with_other_content_is_refused(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    (tmp_path / "in.txt").write_text("ab\n", "utf-8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine", "utf-8")
    assert "holds other files (mine.txt)" in sentence(job("in.txt"))
    (tmp_path / "out" / "mine.txt").unlink()
    assert job("in.txt").status == 0
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    assert job("in.txt", model=model).status == 0  # the same model at another place
    more = transduce("batch", folder, "--output", tmp_path / "out")
    assert more.status == 0  # without --input, the job goes on
    given = ["batch", folder, "--output", tmp_path / "out", "--beam", 2]
    assert "beam: default then, 2 now" in sentence(transduce(*given))
    assert "beam: default then, 2 now" in sentence(job("in.txt", "--beam", 2))
    assert 'format: null then, "tsv" now' in sentence(job("in.txt", "--format", "tsv"))
    recipe = model / "recipe.yaml"
    recipe.write_text(recipe.read_text("utf-8").replace("beam: 2", "beam: 3"), "utf-8")
    assert "outputs of another model" in sentence(job("in.txt", model=model))
    (tmp_path / "in.2.txt").write_text("b\n", "utf-8")
    assert "in.2.txt is new" in sentence(job("in*.txt"))
    (tmp_path / "in.txt").write_text("ba\n", "utf-8")
    assert "in.txt has changed" in sentence(job("in.txt"))
    (tmp_path / "out" / "manifest.json").write_text("{}", "utf-8")
    assert "manifest.json is damaged" in sentence(job("in.txt"))
    empty = transduce("batch", folder, "--output", tmp_path / "nothing")
    assert "there is no job in" in sentence(empty)


def test_a_model_of_an_ensemble_that_changes_stops_the_job(
    folder: Path, tmp_path: Path, job: Any
) -> None:
    (tmp_path / "in.txt").write_text("ab\n", "utf-8")
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    given = ["in.txt", "--engine", "slurm", "--ensemble", other]
    assert job(*given).status == 0
    assert job(*given).status == 0
    recipe = other / "recipe.yaml"
    recipe.write_text(recipe.read_text("utf-8").replace("beam: 2", "beam: 3"), "utf-8")
    assert f"the model {other} has changed since the job" in sentence(job(*given))


def test_a_finished_shard_is_not_decoded_again(tmp_path: Path, job: Any) -> None:
    (tmp_path / "in.txt").write_text("\n".join(SOURCES), "utf-8")
    assert job("in.txt").status == 0
    first, second, _ = parts(tmp_path, ".txt")
    before = second.read_bytes()
    first.write_text("kept\n", "utf-8")
    second.unlink()
    assert job("in.txt").status == 0
    assert first.read_text("utf-8") == "kept\n"
    assert second.read_bytes() == before


def test_an_input_that_changes_stops_the_job(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(SOURCES), "utf-8")
    assert job("in.txt").status == 0
    parts(tmp_path, ".txt")[1].unlink()
    (tmp_path / "in.txt").write_text("\n".join(SOURCES[::-1]), "utf-8")
    reported = transduce("batch", folder, "--output", tmp_path / "out")
    assert "in.txt has changed since the job" in reported.err
    assert reported.status == 2
    assert len(parts(tmp_path, ".txt")) == 2


def test_a_change_in_the_middle_of_an_input_is_noticed(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    path, lines = tmp_path / "in.txt", ["ab"] * 60_000
    path.write_text("\n".join(lines), "utf-8")
    assert job("in.txt", "--engine", "slurm").status == 0  # a plan, and no work
    before = path.stat()
    path.write_text("\n".join([*lines[:30_000], "ba", *lines[30_001:]]), "utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    more = ["--shard", "0/1000"]
    assert "in.txt has changed" in sentence(job("in.txt", *more))
    # Without --input, the worker of a shard looks.
    reported = transduce("batch", folder, "--output", tmp_path / "out", *more)
    assert "in.txt has changed since the job" in reported.err
    assert parts(tmp_path, ".txt") == []
    path.write_text("\n".join(lines), "utf-8")  # restored, with other times
    assert transduce("batch", folder, "--output", tmp_path / "out", *more).status == 0
    assert len(parts(tmp_path, ".txt")) == 20


def test_shards_by_default_suit_the_input_and_the_workers(
    transduce: Transduce, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(SOURCES * 40), "utf-8")
    given = ["--input", tmp_path / "in.txt", "--output", tmp_path / "out", "--workers", 2]
    ended = transduce("batch", folder, *given)
    assert ended.status == 0, ended.err
    assert "280 lines in 9 shards; worker processes: 2" in ended.err
    assert len(parts(tmp_path, ".txt")) == 9
    assert joined(tmp_path).splitlines() == texts(transduce, folder) * 40
    assert transduce("batch", folder, *given, "--workers", 5).status == 0  # the plan stays


def test_a_full_disk_is_one_sentence_and_the_job_goes_on(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(SOURCES), "utf-8")
    sync = os.fsync

    def full(handle: int) -> None:
        if "part-000001" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to see which file is written")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        ended = job("in.txt")
    assert ended.status == 2
    reported = ended.err.splitlines()[-1]
    assert "part-000001.txt could not be written (No space left on device)" in reported
    assert "free some space" in reported
    assert not list((tmp_path / "out").glob(".transduce-*"))
    assert job("in.txt").status == 0
    assert joined(tmp_path).splitlines() == texts(transduce, folder)


def test_tasks_of_a_slurm_array_share_the_shards(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(SOURCES * 3), "utf-8")
    ended = job("in.txt", "--engine", "slurm")
    script = tmp_path / "out" / "batch.sbatch"
    assert ended.out == f"sbatch {script}\n"
    text = script.read_text("utf-8")
    assert "#SBATCH --array=0-1\n" in text
    assert '--shard "${SLURM_ARRAY_TASK_ID}/2"' in text
    assert f"batch {folder} --output {tmp_path / 'out'}" in text
    assert parts(tmp_path, ".txt") == []
    for task, done in enumerate([3, 7]):  # of 7 shards
        given = ["--output", tmp_path / "out", "--workers", 2, "--shard", f"{task}/2"]
        assert transduce("batch", folder, *given).status == 0
        assert len(parts(tmp_path, ".txt")) == done
    assert joined(tmp_path).splitlines() == texts(transduce, folder) * 3


def test_a_glossary_is_kept_with_the_job(
    transduce: Transduce, folder: Path, tmp_path: Path, job: Any
) -> None:
    """Its content decides the outputs: a job goes on with that of its start."""
    (tmp_path / "in.txt").write_text("ab\nb\n")
    terms = tmp_path / "terms.tsv"
    terms.write_text("ab\tdd\n")
    assert job("in.txt", "--glossary", terms).status == 0
    expected = transduce("run", folder, "ab", "b", "--glossary", terms).lines
    assert joined(tmp_path).splitlines() == expected
    assert "dd" in expected[0]
    terms.write_text("ab\tcc\n")
    changed = sentence(job("in.txt", "--glossary", terms))
    assert 'glossary: {"ab": ["dd"]} then, {"ab": ["cc"]} now' in changed
