"""Shards cover every line of every file once, whatever is in the file and however it is cut."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transduce.batch_inference import inputs, job, rows
from transduce.batch_inference.inputs import (
    InputFile,
    Shard,
    Table,
    cut,
    parse_task,
    shards_of_task,
)
from transduce.errors import DataError

TEXT = Table("text", None, ("source",))
BYTES = st.lists(st.sampled_from([b"\n", b"\r\n", b"a", b"bc", b"\xc3\xa9", b" ", b"\xff"]))
MANY = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60
)


def read(path: Path, table: Table, maximum: int) -> list[rows.Row]:
    """The rows of all shards of a file, each shard read by itself."""
    found: list[rows.Row] = []
    for number, (offset, first, lines) in enumerate(cut(str(path), table, maximum)):
        assert 0 < lines <= maximum
        shard = Shard(number, 0, offset, first, lines)
        of_shard = [
            row for group in rows.read_groups(str(path), table, shard) for row in group.rows
        ]
        assert [row.line for row in of_shard] == list(range(first, first + lines))
        found += of_shard
    return found


@MANY
@given(pieces=BYTES, maximum=st.integers(1, 5), chunk=st.integers(1, 9), packed=st.booleans())
def test_each_line_is_in_one_shard(
    tmp_path: Path, pieces: list[bytes], maximum: int, chunk: int, packed: bool
) -> None:
    content = b"".join(pieces)
    path = tmp_path / ("in.gz" if packed else "in.txt")
    path.write_bytes(gzip.compress(content) if packed else content)
    lines = content.split(b"\n")
    lines = lines[:-1] if lines[-1] == b"" else lines
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "CHUNK", chunk)
        patch.setattr(rows, "CHUNK", chunk)
        found = read(path, TEXT, maximum)
    assert [row.line for row in found] == list(range(1, len(lines) + 1))
    texts = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]
    assert [row.fields for row in found] == [[text] for text in texts]


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf", b"s\tt", b"s\tt\n"])
def test_files_without_rows_have_no_shard(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "in.tsv"
    path.write_bytes(content)
    table = Table("tsv", "s", ("s", "t"), "s\tt") if b"s" in content else TEXT
    assert list(cut(str(path), table, 2)) == []


def test_a_header_is_in_no_shard(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_bytes(b"s\tt\na\t1\nb\t2\nc\t3")
    found = read(path, Table("tsv", "s", ("s", "t"), "s\tt"), 2)
    assert [(row.line, row.source) for row in found] == [(2, "a"), (3, "b"), (4, "c")]


@MANY
@given(sizes=st.lists(st.integers(0, 30)), maximum=st.integers(1, 12))
def test_row_groups_are_kept_together_where_they_fit(sizes: list[int], maximum: int) -> None:
    found = list(inputs._packed(sizes, maximum))
    assert all(0 < rows <= maximum for _, rows in found)
    covered = [row for first, rows in found for row in range(first, first + rows)]
    assert covered == list(range(1, sum(sizes) + 1))
    if sizes and max(sizes) <= maximum:
        ends = {sum(sizes[: i + 1]) for i in range(len(sizes))}
        assert all(first + rows - 1 in ends for first, rows in found)


@pytest.mark.parametrize(
    ("lines", "workers", "fewest", "size"),
    [
        (1, 2, 32, 32),
        (1024, 2, 32, 32),
        (1025, 2, 32, 33),
        (20_000, 2, 32, 625),
        (20_000, 1, 2048, 2048),
        (65_504, 2, 32, 2047),
        (65_536, 2, 32, 2048),
        (1_000_000, 2, 32, 15 * 2048),
        (1_000_000_000, 8, 32, 48 * 2048),
    ],
)
def test_the_size_of_shards(lines: int, workers: int, fewest: int, size: int) -> None:
    assert job.shard_size(lines, workers, fewest) == size


@pytest.mark.parametrize("group", [4, 8, 64])
@pytest.mark.parametrize("ending", [".txt", ".gz", ".tsv"])
def test_a_plan_covers_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int, ending: str
) -> None:
    """Also where it is made of larger parts, and over several files."""
    monkeypatch.setattr(job, "GROUP_LINES", group)
    monkeypatch.setattr(job, "SHARDS", 3)
    table = Table("tsv", "s", ("s", "t"), "s\tt") if ending == ".tsv" else TEXT
    files = []
    for name, count in (("a", 50), ("b", 3), ("c", 47)):
        lines = [f"{name}{number}" for number in range(count)]
        if ending == ".tsv":
            lines = ["s\tt", *(f"{line}\tx" for line in lines)]
        data = "\n".join(lines).encode()
        (tmp_path / (name + ending)).write_bytes(gzip.compress(data) if ending == ".gz" else data)
        files.append(InputFile.identify(str(tmp_path / (name + ending))))
    plan = job._plan(files, table, None, 2, 2, print)
    assert [shard.number for shard in plan] == list(range(len(plan)))
    size = {4: 16, 8: 16, 64: 17}[group]  # 100 lines over 6, in whole groups
    assert max(shard.lines for shard in plan) == size
    found = [
        row.source
        for shard in plan
        for one in rows.read_groups(files[shard.file].path, table, shard)
        for row in one.rows
    ]
    expected = [("a", 50), ("b", 3), ("c", 47)]
    assert found == [f"{name}{number}" for name, count in expected for number in range(count)]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(record=st.dictionaries(st.text(), JSON, max_size=4), space=st.sampled_from(["", " ", "\t "]))
def test_the_json_of_each_key(record: dict[str, Any], space: str) -> None:
    marks = (f"{space},{space}", f"{space}:{space}")
    text = json.dumps(record, separators=marks)
    text = "{" + space + text[1:-1] + space + "}"
    found = rows.json_of_keys(text)
    assert found == {key: json.dumps(value, separators=marks) for key, value in record.items()}


@given(count=st.integers(0, 500), tasks=st.integers(1, 700))
def test_every_shard_is_in_one_task_of_an_array(count: int, tasks: int) -> None:
    parts = [shards_of_task(count, task, tasks) for task in range(tasks)]
    assert [number for part in parts for number in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["", "1", "3/3", "-1/3", "1/0", "a/b", "1/2/3", "0/ 4"])
def test_a_wrong_share_is_one_sentence(text: str) -> None:
    with pytest.raises(DataError, match="it must be i/n"):
        parse_task(text)
    assert parse_task("0/8") == (0, 8)


def test_a_long_line_costs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "LONGEST", 10)
    monkeypatch.setattr(rows, "CHUNK", 8)
    path = tmp_path / "in.txt"
    lengths = [3, 10, 11, 44, 45, 52, 53, 60, 200, 1]
    path.write_bytes(b"\n".join(b"a" * n for n in lengths))
    found = read(path, TEXT, 4)
    assert [bool(row.problem) for row in found] == [length > 10 for length in lengths]
    assert [len(row.source) for row in found] == [n if n <= 10 else 0 for n in lengths]


def test_a_file_that_became_shorter_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"a\n")
    with pytest.raises(DataError, match="ends before line 2"):
        list(rows.read_groups(str(path), TEXT, Shard(0, 0, 0, 1, 2)))


def test_csv_rows_of_a_shard(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('s,t\n"a, b",1\n"c ""d""",2\n"e"f,3\ng,h,4\ni,5\n')
    found = read(path, Table("csv", "s", ("s", "t"), "s\tt"), 2)
    assert [row.source for row in found] == ["a, b", 'c "d"', "", "", "i"]
    assert [bool(row.problem) for row in found] == [False, False, True, True, False]
    assert "closing quote" in found[2].problem
    assert "3 columns" in found[3].problem


@pytest.mark.parametrize("line", ['"a\nb",c', 'd"e,"f\ng",h'])
def test_csv_cells_over_several_lines_are_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "in.csv"
    path.write_text(f"x,y\n{line}\n")
    with pytest.raises(DataError, match=r"in\.csv:2: a quote is not closed in this line"):
        list(cut(str(path), Table("csv", 0, ("column0", "column1")), 2))
