"""Files of a recipe: names that are nearly right, and files that are not what their name says."""

from __future__ import annotations

import gzip
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from transduce.data.text import files
from transduce.data.text.files import find_files, read_lines
from transduce.errors import DataError


def test_the_nearest_name_is_said_where_one_is_near(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_text("a\n")
    with pytest.raises(DataError, match=r"no file .*trian\.en; did you mean train\.en\?$"):
        find_files("trian.en", str(tmp_path))
    for name in ("corpus.tsv", "train.de"):  # the other side is not meant
        with pytest.raises(
            DataError, match="correct the name, or say where the files are with data"
        ):
            find_files(name, str(tmp_path))
    with pytest.raises(DataError, match="correct the name"):
        find_files("nowhere/train.en", str(tmp_path))


@pytest.mark.parametrize("packed", [".gz", ".xz"])
def test_a_text_that_is_not_compressed_is_told_from_a_damaged_file(
    tmp_path: Path, packed: str
) -> None:
    (tmp_path / f"plain{packed}").write_text("one\ntwo\n")
    with pytest.raises(DataError, match=f"is not compressed, despite its name: remove {packed}"):
        list(read_lines(f"plain{packed}", str(tmp_path)))


def test_a_compressed_file_that_is_cut_short(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"one\n" * 1000)[:-9])
    with pytest.raises(DataError, match="damaged or truncated here"):
        list(read_lines("cut.gz", str(tmp_path)))


def long_file(folder: Path, line: str, name: str = "long.txt") -> str:
    (folder / name).write_text(f"first\n{line}\nlast\n", "utf-8")
    return name


@pytest.mark.parametrize("letter", ["a", "é", "茶", "🎉", "ab "])
def test_of_a_long_line_the_start_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, letter: str
) -> None:
    monkeypatch.setattr(files, "LONGEST", 1000)
    name = long_file(tmp_path, letter * 20_000)
    first, cut, last = files.read_lines(name, str(tmp_path))
    assert (first, last) == ("first", "last")
    assert 1000 < len(cut) <= 6000
    assert (letter * 20_000).startswith(cut)
    pieces = list(files.read_lines(name, str(tmp_path), breaks=True))
    assert len(pieces) > 3
    assert "".join(pieces) == (tmp_path / name).read_text("utf-8")
    assert max(map(len, pieces)) <= 6000


def test_a_long_line_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LONGEST", 10)
    monkeypatch.setattr(files, "NEAR", 4)
    for size in range(40, 160):
        for end in ("", "\n", "\r\n"):
            text = "é" * size + end
            (tmp_path / "one.txt").write_text(text, "utf-8", newline="")
            pieces = files.read_lines("one.txt", str(tmp_path), breaks=True)
            assert "".join(pieces) == text.replace("\r", "")
            (line,) = files.read_lines("one.txt", str(tmp_path))
            assert ("é" * size).startswith(line)


def test_a_line_of_a_table_is_whole_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = long_file(tmp_path, "a" * 5000)
    monkeypatch.setattr(files, "LONGEST", 10)
    assert [len(line) for line in files.read_lines(name, str(tmp_path), table=True)] == [5, 5000, 4]
    monkeypatch.setattr(files, "MAX_BYTES", 4000)
    with pytest.raises(DataError, match=r"long\.txt:2: the line has more than 0 MB"):
        list(files.read_lines(name, str(tmp_path), table=True))


@pytest.mark.parametrize("block", [1, 2, 7, 64, files.BLOCK])
@pytest.mark.parametrize("breaks", [False, True])
def test_lines_are_the_same_however_many_bytes_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, breaks: bool
) -> None:
    monkeypatch.setattr(files, "BLOCK", block)
    random, pieces = (
        Random(3),
        ["a", "é", "茶", "\r", "\n", "\r\n", "\ufeff", "\x85", "\u2028", "\t"],
    )
    for _ in range(200):
        text = "x" + "".join(random.choices(pieces, k=random.randint(0, 12)))
        (tmp_path / "some.txt").write_bytes(random.choice([b"", files.BOM]) + text.encode())
        lines = text.split("\n")
        ends = ["\n"] * (len(lines) - 1) + [""]
        if not lines[-1]:
            lines, ends = lines[:-1], ends[:-1]
        wanted = [line.removesuffix("\r") for line in lines]
        wanted = [line + end * breaks for line, end in zip(wanted, ends, strict=True)]
        assert list(read_lines("some.txt", str(tmp_path), breaks)) == wanted


def test_the_lines_before_one_that_cannot_be_read_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", 64)
    (tmp_path / "some.txt").write_bytes(b"word\n" * 100 + b"w\xffrd\n" + b"word\n" * 100)
    lines = read_lines("some.txt", str(tmp_path))
    assert list(islice(lines, 100)) == ["word"] * 100
    with pytest.raises(DataError, match=r"some\.txt:101: byte 2 of the line \(0xff\)"):
        next(lines)
