"""model.sha256: a file that is not the one that was written is told apart, also after a kill."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from transduce import checksums
from transduce.checksums import SUMS, fits, is_ours, list_files, listed, strangers, write_listed
from transduce.errors import CheckpointError
from transduce.storage import write_text


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "PAUSE", 0.0)


def test_a_file_fits_until_it_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for text in ("one", "two", "two"):
        write_listed(path, text)
        assert fits(path)
        assert is_ours(path)
    assert (tmp_path / SUMS).read_text().count("\n") == 1
    path.write_text("three")
    assert not fits(path)
    assert not is_ours(path)


def test_what_is_not_listed_is_a_persons(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    write_listed(tmp_path / "b.txt", "ours")
    assert fits(tmp_path / "a.txt")
    assert not is_ours(tmp_path / "a.txt")
    assert not is_ours(tmp_path / "missing")
    assert fits(tmp_path / "missing")
    assert strangers(tmp_path) == [tmp_path / "a.txt"]
    list_files(tmp_path, tmp_path / "a.txt")
    assert strangers(tmp_path) == []


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_kill_between_the_file_and_its_line(tmp_path: Path, place: str) -> None:
    path = tmp_path / "a.txt"
    write_listed(path, "old")

    class Killed(BaseException):
        pass

    def kill(whole: Path) -> None:
        raise Killed

    def write() -> None:
        with listed(path) as announce:
            if place == "before":
                write_text(path, "new", lambda whole: (announce(whole), kill(whole)))
            write_text(path, "new", announce)
            raise Killed

    with pytest.raises(Killed):
        write()
    assert path.read_text() == ("old" if place == "before" else "new")
    assert fits(path)
    assert is_ours(path)
    assert (tmp_path / SUMS).read_text().count("\n") == 2
    write_listed(path, "newer")
    assert (tmp_path / SUMS).read_text().count("\n") == 1


def test_a_later_writer_of_the_same_file_keeps_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with listed(path) as first, listed(path) as second:
        write_text(path, "first", first)
        write_text(path, "second", second)
    assert fits(path)
    write_listed(path, "third")
    assert (tmp_path / SUMS).read_text().count("\n") == 1


@pytest.mark.parametrize("text", ["no sum", "abc  a.txt", f"{'g' * 64}  a.txt", "\udcff"])
def test_sums_that_were_damaged(tmp_path: Path, text: str) -> None:
    write_listed(tmp_path / "a.txt", "text")
    (tmp_path / SUMS).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=SUMS):
        fits(tmp_path / "a.txt")
    assert not is_ours(tmp_path / "a.txt")


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs sha256sum")
def test_sha256sum_can_check_it(tmp_path: Path) -> None:
    for name in ("a.txt", "b c.txt"):
        write_listed(tmp_path / name, name)
    command = ["sha256sum", "-c", SUMS]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / "a.txt").write_text("changed")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 1
