"""Getting a corpus: whole or not at all, from the web or from files that one has."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from loopback import Loopback, cut, status, well
from tiny_corpus import CONTENTS, ENGLISH, GERMAN, SERVED
from transduce.corpora import FETCHED
from transduce.corpora import fetch as getting
from transduce.corpora.entry import Form, Listing
from transduce.corpora.fetch import get
from transduce.corpora.location import is_intact
from transduce.errors import DataError, TransduceError


def nothing(file: str, there: int) -> None:
    pass


def left(folder: Path) -> list[str]:
    """All that is below a folder, by name."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


WHOLE = ["tiny", "tiny/corpus.json", "tiny/train.de", "tiny/train.en"]


def check_whole(shelf: Path) -> None:
    assert left(shelf) == WHOLE
    assert (shelf / "tiny" / "train.en").read_bytes() == ENGLISH
    assert (shelf / "tiny" / "train.de").read_bytes() == GERMAN
    metadata = json.loads((shelf / "tiny" / "corpus.json").read_text())
    assert metadata["licence"] == "in the public domain"
    assert metadata["home"] == "https://example.org"
    assert is_intact(shelf / "tiny")


def failure(listing: Listing, shelf: Path, given: Path | None = None) -> str:
    with pytest.raises(TransduceError) as caught:
        get(listing, shelf, given, nothing)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------- fetched


def test_it_is_fetched_once(tiny: Listing, server: Loopback, shelf: Path) -> None:
    reported: list[tuple[str, int]] = []
    assert get(tiny, shelf, None, lambda *what: reported.append(what))
    check_whole(shelf)
    sizes = [there for _, there in reported]
    assert sizes == sorted(sizes)
    assert sizes[-1] == tiny.download == sum(map(len, SERVED.values()))
    assert {name for name, _ in reported} >= {"one.en.gz", "one.de"}
    assert not get(tiny, shelf, None, nothing)
    assert len(server.asked) == 2


@pytest.mark.parametrize("file", ["one.en.gz", "one.de"])
def test_what_came_before_it_broke_is_kept(
    tiny: Listing, server: Loopback, shelf: Path, file: str
) -> None:
    server.replies[file] = [cut(5000), cut(0)]
    assert "only 5,000 of" in failure(tiny, shelf)
    kept = [f"tiny.part/downloads/{file}.part"]
    if file == "one.de":
        kept = ["tiny.part/downloads/one.de.part", "tiny.part/downloads/one.en.gz"]
    assert left(shelf) == ["tiny.part", "tiny.part/downloads", *kept]
    server.asked.clear()
    server.replies.clear()
    assert get(tiny, shelf, None, nothing)
    check_whole(shelf)
    assert server.asked[0] == (file, "bytes=5000-")
    assert len(server.asked) == (2 if file == "one.en.gz" else 1)


def test_nothing_is_left_where_nothing_came(tiny: Listing, server: Loopback, shelf: Path) -> None:
    server.replies["one.en.gz"] = [status(404)]
    assert "answers 404" in failure(tiny, shelf)
    assert left(shelf) == []
    server.replies["one.en.gz"] = [well]
    server.files["one.en.gz"] = gzip.compress(b"a cat may look at a king\n" * 4000)
    assert "has other content" in failure(tiny, shelf)
    assert left(shelf) == []


def test_bytes_that_change_when_unpacked(tiny: Listing, server: Loopback, shelf: Path) -> None:
    """As long as what is expected, but wrong: found out before anything is made of it."""
    for damage in (0, 5000, len(SERVED["one.en.gz"]) - 1):
        body = bytearray(SERVED["one.en.gz"])
        body[damage] ^= 0x10
        server.files["one.en.gz"] = bytes(body)
        assert "has other content than expected" in failure(tiny, shelf)
        assert left(shelf) == []


def test_a_corpus_that_was_damaged_is_made_anew(tiny: Listing, shelf: Path) -> None:
    get(tiny, shelf, None, nothing)
    (shelf / "tiny" / "train.de").write_bytes(GERMAN[:-10])
    assert get(tiny, shelf, None, nothing)
    check_whole(shelf)
    (shelf / "tiny" / "train.en").unlink()
    assert get(tiny, shelf, None, nothing)
    check_whole(shelf)
    for metadata in ("{", '{"format": 0, "files": {"train.de": ""}}'):  # damaged; of an older form
        (shelf / "tiny" / "corpus.json").write_text(metadata, "utf-8")
        assert get(tiny, shelf, None, nothing)
        check_whole(shelf)


def test_what_was_there_stays_until_the_new_one_is_in_place(
    tiny: Listing, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get(tiny, shelf, None, nothing)
    (shelf / "tiny" / "train.de").write_bytes(GERMAN[:-10])
    before = left(shelf)
    rename = Path.replace

    def replace(path: Path, target: Path) -> Path:
        if path.name == "made":
            raise OSError(28, "No space left on device", str(path))
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", replace)
        assert "could not be written (No space left on device)" in failure(tiny, shelf)
    assert [name for name in left(shelf) if not name.startswith("tiny.part")] == before
    assert (shelf / "tiny" / "train.de").read_bytes() == GERMAN[:-10]
    assert get(tiny, shelf, None, nothing)
    check_whole(shelf)


def test_a_corpus_that_a_kill_left_aside_is_taken_back(tiny: Listing, shelf: Path) -> None:
    get(tiny, shelf, None, nothing)
    aside = shelf / ".transduce-killed.part" / "before"
    aside.mkdir(parents=True)
    (shelf / "tiny").rename(aside / "tiny")
    assert not get(tiny, shelf, None, nothing)  # intact: nothing is downloaded
    check_whole(shelf)


def test_files_of_other_people_are_not_touched(tiny: Listing, shelf: Path) -> None:
    (shelf / "tiny").mkdir(parents=True)
    (shelf / "tiny" / "mine.txt").write_text("mine")
    assert "holds other files, such as mine.txt; move them" in failure(tiny, shelf)
    assert left(shelf) == ["tiny", "tiny/mine.txt"]
    (shelf / "tiny" / "mine.txt").unlink()
    assert get(tiny, shelf, None, nothing)  # an empty folder is nobody's
    check_whole(shelf)
    (shelf / "tiny" / "mine.txt").write_text("mine")
    (shelf / "tiny" / "train.de").unlink()  # it has to be made anew
    assert "such as mine.txt" in failure(tiny, shelf)
    assert (shelf / "tiny" / "mine.txt").read_text() == "mine"


def test_two_at_the_same_time(tiny: Listing, shelf: Path) -> None:
    with getting._work_folder(shelf / "tiny.part", "tiny"):
        assert "another process is getting tiny" in failure(tiny, shelf)
        assert left(shelf) == ["tiny.part", "tiny.part/lock"]
    assert get(tiny, shelf, None, nothing)
    check_whole(shelf)


def test_a_lock_that_a_dead_process_left(tiny: Listing, shelf: Path) -> None:
    (shelf / "tiny.part" / "made").mkdir(parents=True)
    (shelf / "tiny.part" / "lock").touch()
    (shelf / "tiny.part" / "made" / "train.en").write_bytes(ENGLISH[:100])
    assert get(tiny, shelf, None, nothing)
    check_whole(shelf)


def test_too_little_space_is_reported_before(
    tiny: Listing, server: Loopback, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(tiny.size + tiny.download - 1))
    said = failure(tiny, shelf)
    assert f"tiny needs 0.5 MB, and 0.5 MB are free in {shelf}" in said
    assert server.asked == []
    assert left(shelf) == []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(tiny.size + tiny.download))
    assert get(tiny, shelf, None, nothing)


def test_a_disk_that_is_full_when_the_corpus_is_made(
    tiny: Listing, server: Loopback, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def full(path: Path, data: Any) -> int:
        if path.name == "train.de":
            write(path, data[:1000])
            raise OSError(28, os.strerror(28))
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "could not be written (No space left on device); free some" in failure(tiny, shelf)
    downloads = ["tiny.part/downloads/one.de", "tiny.part/downloads/one.en.gz"]
    assert left(shelf) == ["tiny.part", "tiny.part/downloads", *downloads]
    monkeypatch.undo()


def test_a_corpus_that_cannot_be_made(tiny: Listing, shelf: Path) -> None:
    def make(files: Any, folder: Path) -> None:
        (folder / "train.en").write_bytes(b"half")
        raise DataError("it has 12 reviews instead of 13")

    broken = replace(tiny, forms=(Form(tiny.forms[0].files, make),))
    assert "12 reviews" in failure(broken, shelf)
    assert not (shelf / "tiny").exists()
    assert not (shelf / "tiny.part" / "made").exists()


def test_a_place_that_cannot_be(tiny: Listing, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made (Not a directory)" in failure(tiny, tmp_path / "file" / "shelf")


# --------------------------------------------------------------------------------------- given


PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("deeper", ["", "data/raw"])
def test_files_that_one_has(
    tiny: Listing, server: Loopback, shelf: Path, tmp_path: Path, suffix: str, deeper: str
) -> None:
    folder = tmp_path / "mine" / deeper
    folder.mkdir(parents=True)
    for name, text in CONTENTS.items():
        (folder / f"{name}{suffix}").write_bytes(PACK[suffix](text))
    before = left(tmp_path / "mine")
    assert get(tiny, shelf, tmp_path / "mine", nothing)
    check_whole(shelf)
    assert left(tmp_path / "mine") == before
    assert server.asked == []


def test_a_folder_that_must_be_one(tmp_path: Path, shelf: Path) -> None:
    (tmp_path / "aclImdb").touch()
    assert "aclImdb is damaged" in failure(FETCHED["imdb"], shelf, tmp_path)


def test_of_several_files_the_right_one(tiny: Listing, shelf: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for place, english in {"a": b"other\n", "b": ENGLISH}.items():
        (mine / place).mkdir(parents=True)
        (mine / place / "one.en").write_bytes(english)
    (mine / "one.de").write_bytes(GERMAN)
    assert get(tiny, shelf, mine, nothing)
    check_whole(shelf)


def test_files_that_are_not_right(tiny: Listing, shelf: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    assert f"there is no folder {mine}" in failure(tiny, shelf, mine)
    mine.mkdir()
    assert "holds no file of tiny: wanted are one.en, one.de" in failure(tiny, shelf, mine)
    (mine / "one.en.gz").write_bytes(SERVED["one.en.gz"])
    assert f"{mine} lacks one.de of tiny" in failure(tiny, shelf, mine)
    (mine / "one.de").write_bytes(GERMAN + b"more\n")
    assert f"{mine}/one.de is damaged, or not the one.de" in failure(tiny, shelf, mine)
    (mine / "one.de").write_bytes(GERMAN)
    (mine / "one.en.gz").write_bytes(SERVED["one.en.gz"][:-20])
    assert "one.en.gz is damaged" in failure(tiny, shelf, mine)
    assert not shelf.exists()


def test_what_has_no_public_address_must_be_given(shelf: Path) -> None:
    with pytest.raises(DataError, match="asterisk cannot be downloaded: get en_flac_8k"):
        getting.get(FETCHED["asterisk"], shelf, None, lambda file, there: None)
    assert not shelf.exists() or not any(shelf.iterdir())
