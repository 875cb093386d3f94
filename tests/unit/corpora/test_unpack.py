"""Packed files: what is in them is read, and nothing that they name is written or followed."""

from __future__ import annotations

import gzip
import io
import lzma
import re
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

from transduce.corpora.entry import Checksum
from transduce.corpora.unpack import has_sum, members, read_bytes
from transduce.errors import DataError

TEXT = "ein Hund läuft\n".encode() * 100
SUM = Checksum(len(TEXT), sha256(TEXT).hexdigest(), 0)
ANY = re.compile(".*", re.DOTALL)
PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.mark.parametrize("suffix", PACK)
def test_files_packed_and_plain(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(PACK[suffix](TEXT))
    assert read_bytes(path) == TEXT
    assert has_sum(path, SUM, suffix)
    path.write_bytes(PACK[suffix](TEXT[:-1] + b"!"))
    assert not has_sum(path, SUM, suffix)
    for damaged in (PACK[suffix](TEXT)[:-9], b"nonsense", b""):
        path.write_bytes(damaged)
        assert not has_sum(path, SUM, suffix)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_packed_file_without_end_is_not_read_to_its_end(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(PACK[suffix](bytes(50_000_000)))
    assert path.stat().st_size < 100_000
    read = 0

    class Counting(io.BufferedReader):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal read
            block = super().read(size)
            read += len(block)
            return block

    opened = {".gz": gzip.open, ".xz": lzma.open}[suffix]
    name = {".gz": "gzip.open", ".xz": "lzma.open"}[suffix]
    monkeypatch.setattr(f"transduce.corpora.unpack.{name}", lambda p: Counting(opened(p)))
    assert not has_sum(path, SUM, suffix)
    assert 0 < read < 3_000_000


def archive(path: Path, *entries: tuple[str, bytes | str | None]) -> Path:
    """A tar.gz of files (bytes), links (what they point to) and devices (None)."""
    with tarfile.open(path, "w:gz") as tar:
        for name, what in entries:
            info = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                info.size = len(what)
                tar.addfile(info, io.BytesIO(what))
            else:
                info.type = tarfile.CHRTYPE if what is None else tarfile.SYMTYPE
                info.linkname = what or ""
                tar.addfile(info)
    return path


def test_an_archive_can_lead_nowhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    within = tmp_path / "within"
    within.mkdir()
    path = archive(
        within / "a.tar.gz",
        ("../outside.txt", b"outside"),
        ("/absolute.txt", b"absolute"),
        ("link.txt", "../secret"),
        ("device.txt", None),
        ("a/b.txt", b"within"),
    )
    found = {match[0]: contents for match, contents in members(path, ANY)}
    # Names are only compared, links and devices passed over.
    assert found == {
        "../outside.txt": b"outside",
        "/absolute.txt": b"absolute",
        "a/b.txt": b"within",
    }
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.tar.gz", "secret", "within"]


def test_only_what_is_wanted(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tgz", ("a/1.txt", b"one"), ("a/2.html", b"two"), ("b/3.txt", b""))
    wanted = re.compile(r"a/(?P<number>\d)\.txt")
    assert [(m["number"], c) for m, c in members(path, wanted)] == [("1", b"one")]


def test_a_folder_is_read_as_its_archive(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "1.txt").write_bytes(b"one")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "a" / "b" / "2.txt").symlink_to(tmp_path / "secret")
    found = [(match[0], contents) for match, contents in members(tmp_path / "a", ANY)]
    assert found == [("a/b/1.txt", b"one")]


@pytest.mark.parametrize("wanted", ["a.*", "nothing"])
def test_an_archive_of_too_much(tmp_path: Path, wanted: str) -> None:
    path = archive(tmp_path / "a.tgz", ("a1", bytes(600)), ("a2", bytes(600)))
    with pytest.raises(DataError, match="holds more than 1,000 bytes"):
        list(members(path, re.compile(wanted), maximum=1000))
    assert len(list(members(path, ANY, maximum=1200))) == 2


def test_a_folder_of_too_much(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(bytes(600))
    (tmp_path / "2").write_bytes(bytes(600))
    with pytest.raises(DataError, match="holds more than 1,000 bytes"):
        list(members(tmp_path, ANY, maximum=1000))


def test_a_damaged_archive(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tgz", ("a", TEXT * 50))
    whole = path.read_bytes()
    for damaged in (whole[:-30], whole[: len(whole) // 2], b"nonsense", b""):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="is damaged"):
            list(members(path, ANY))
