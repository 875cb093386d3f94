"""The index of a file: kept in the cache, and made again where it does not fit any more."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.data.index import files
from transduce.data.index.corpus import index_corpus
from transduce.data.index.files import FileIndex, index_lines
from transduce.data.text.files import Span, read_lines
from transduce.data.text.pairs import PairColumns, ReadingCounts, read_pairs
from transduce.errors import DataError
from transduce.recipe import ParallelFiles


def texts(index: FileIndex, folder: Path) -> list[list[str]]:
    """The lines of each block."""
    found = []
    for block in range(len(index)):
        span = index.span(block)
        assert isinstance(span, Span)
        found.append(list(read_lines(index.name, str(folder), span=span)))
    return found


@pytest.mark.parametrize("packed", [False, True])
@given(
    lines=st.lists(st.text("ab é\r", max_size=5), min_size=1, max_size=30),
    block=st.integers(1, 9),
    ends=st.booleans(),
    chunk=st.integers(1, 20),
)
@settings(max_examples=40, deadline=None)
def test_blocks_are_the_lines_of_the_file(
    tmp_path_factory: pytest.TempPathFactory,
    packed: bool,
    lines: list[str],
    block: int,
    ends: bool,
    chunk: int,
) -> None:
    raw = ("\n".join(lines) + "\n" * (ends or lines[-1] == "")).encode()
    folder = tmp_path_factory.mktemp("index")
    name = "a.txt.gz" if packed else "a.txt"
    (folder / name).write_bytes(gzip.compress(raw) if packed else raw)
    whole = list(read_lines(name, str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "CHUNK", chunk)
        index = index_lines(name, str(folder), block, folder / "cache", print)
    again = index_lines(name, str(folder), block, folder / "cache", pytest.fail)
    for one in (index, again):
        assert texts(one, folder) == [whole[at : at + block] for at in range(0, len(whole), block)]
        assert one.rows == len(whole) == one.sizes.sum()


@pytest.fixture
def indexed(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(50)))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress((tmp_path / "a.txt").read_bytes()))
    for name in ("a.txt", "b.txt.gz"):
        index_lines(name, str(tmp_path), 8, tmp_path / "cache", print)
    return tmp_path


def of(folder: Path, name: str) -> tuple[list[list[str]], list[str]]:
    said: list[str] = []
    found = texts(index_lines(name, str(folder), 8, folder / "cache", said.append), folder)
    return found, said


@pytest.mark.parametrize("name", ["a.txt", "b.txt.gz"])
def test_the_use_of_an_index_is_noted(indexed: Path, name: str) -> None:
    """So that the cache removes what was not used for longest."""
    there = [path for path in (indexed / "cache").iterdir() if path.is_file()]
    for path in there:
        os.utime(path, (0, 0))
    of(indexed, name)
    used = [path.suffix for path in there if path.stat().st_mtime > 0]
    assert sorted(used) == ([".safetensors"] if name == "a.txt" else [".blocks", ".safetensors"])


@pytest.mark.parametrize("name", ["a.txt", "b.txt.gz"])
def test_a_changed_file_is_indexed_again(indexed: Path, name: str) -> None:
    more = b"one more\n"
    with (indexed / name).open("ab") as file:
        file.write(gzip.compress(more) if name.endswith("gz") else more)
    found, said = of(indexed, name)
    assert found[-1] == ["line 48", "line 49", "one more"]
    assert said[0] == f"{name} has changed since it was indexed; it is indexed again"
    assert of(indexed, name)[1] == []


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_index_is_made_again(indexed: Path, damage: str) -> None:
    expected, _ = of(indexed, "a.txt")
    for path in (indexed / "cache").glob("*.index.safetensors"):
        raw = bytearray(path.read_bytes())
        if damage == "flipped":
            raw[-3] ^= 1
        path.write_bytes({"truncated": raw[:-8], "flipped": raw, "empty": b""}[damage])
    found, said = of(indexed, "a.txt")
    assert found == expected
    assert said == ["the index of a.txt in the cache is damaged; it is made again"]


def test_a_copy_that_is_gone_or_truncated_is_made_again(indexed: Path) -> None:
    expected, _ = of(indexed, "b.txt.gz")
    (copy,) = (indexed / "cache").glob("*.blocks")
    for damage in (copy.unlink, lambda: copy.write_bytes(copy.read_bytes()[:-1])):
        damage()
        found, said = of(indexed, "b.txt.gz")
        assert found == expected
        assert said[0] == "the copy of b.txt.gz in the cache is damaged or gone; it is made again"


def test_a_damaged_copy_is_one_sentence(indexed: Path) -> None:
    (copy,) = (indexed / "cache").glob("*.blocks")
    raw = bytearray(copy.read_bytes())
    raw[len(raw) // 2] ^= 255
    copy.write_bytes(raw)
    with pytest.raises(DataError, match=r"b\.txt\.gz in the cache, is damaged .*remove it"):
        of(indexed, "b.txt.gz")


def test_a_damaged_or_empty_file_is_one_sentence(tmp_path: Path) -> None:
    packed = gzip.compress(b"a line\n" * 1000)
    (tmp_path / "a.gz").write_bytes(packed[:-20])
    (tmp_path / "b").write_bytes(b"")
    for name, sentence in (("a.gz", "damaged or truncated"), ("b", "b is empty")):
        with pytest.raises(DataError, match=sentence):
            index_lines(name, str(tmp_path), 8, tmp_path / "cache", print)
    assert not list((tmp_path / "cache").glob("*"))


def test_an_index_that_cannot_be_kept_is_used_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "cache").write_text("a file where the folder should be")
    said: list[str] = []
    index = index_lines("a.txt", str(tmp_path), 1, tmp_path / "cache", said.append)
    assert texts(index, tmp_path) == [["one"], ["two"]]
    assert len(said) == 1
    assert said[0].startswith("the index of a.txt is not kept, and made again next time: ")


def test_a_long_line_of_running_text_comes_in_pieces(tmp_path: Path) -> None:
    long = "word " * 200_000
    (tmp_path / "a.txt").write_text(f"short\n{long}\nend\n")
    index = index_lines("a.txt", str(tmp_path), 2, tmp_path / "cache", print)
    found = []
    for block in range(2):
        span = index.span(block)
        assert isinstance(span, Span)
        found.append("".join(read_lines("a.txt", str(tmp_path), breaks=True, span=span)))
    assert found == [f"short\n{long}\n", "end\n"]
    assert np.array_equal(index.sizes, [2, 1])


ODD_LINES: dict[str, bytes] = {
    "plain": b"one two\nthree\nfour\n",
    "no end": b"one\ntwo\nthree",
    "empty": b"one\n\nthree\n",
    "blank": b"one\n \t\nthree\n",
    "blank at the end": b"one\ntwo\n\n",
    "carriage returns": b"one\r\ntwo\r\nthree\r\n",
    "carriage return inside": b"one\rtwo\nthree\nfour\n",
    "form feed at the end": b"one\ntwo\nthree\x0c",
    "line separator": "one\ntwo\u2028\nthree\n".encode(),
    "byte order mark": b"\xef\xbb\xbfone\ntwo\nthree\n",
    "long": b"one\n" + 60_000 * b"x " + b"\nthree\n",
    "not ASCII": "ö ñ\nтри\n四\n".encode(),
}


@pytest.mark.parametrize("target", ODD_LINES)
@pytest.mark.parametrize("tag", [None, "fre"])
def test_a_block_read_at_once_is_the_block_read_line_by_line(
    tmp_path: Path, target: str, tag: str | None
) -> None:
    (tmp_path / "a.en").write_bytes(ODD_LINES["plain"])
    (tmp_path / "a.de").write_bytes(ODD_LINES[target])
    corpus = ParallelFiles(source="a.en", target="a.de", tag=tag)
    index = index_corpus(corpus, str(tmp_path), 2, tmp_path / "cache", lambda sentence: None)
    at_once, by_line = ReadingCounts(), ReadingCounts()
    columns = [index.read(block, at_once) for block in range(2)]
    whole = PairColumns.of(read_pairs(corpus, str(tmp_path), by_line))
    assert PairColumns.joined(columns) == whole
    assert at_once == by_line


def test_a_block_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "a.de").write_bytes(b"one\ntwo\nth\xff\n")
    corpus = ParallelFiles(source="a.en", target="a.de")
    index = index_corpus(corpus, str(tmp_path), 2, tmp_path / "cache", lambda sentence: None)
    assert len(index.read(0, ReadingCounts())) == 2
    with pytest.raises(DataError, match=r"a.de:3: byte 3 .* is not UTF-8"):
        index.read(1, ReadingCounts())
