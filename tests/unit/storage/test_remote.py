"""Files of a store, here one in memory: read by position, through a bounded cache of blocks."""

from __future__ import annotations

import errno
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest

from transduce.errors import DataError
from transduce.storage.positions import open_at, place_at, version_of
from transduce.storage.remote import RemotePath, blocks, is_remote, paths
from transduce.storage.remote.blocks import BLOCK, TOGETHER, BlockCache

CONTENT = Random(1).randbytes(10 * BLOCK + 100)
URL = "memory://corpus/train.en"


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A store with one file, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(paths, "WAITS", (0.0, 0.0))
    store = fsspec.filesystem("memory")
    store.pipe("/corpus/train.en", CONTENT)
    yield store
    store.store.clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The ranges of bytes that the store was asked for."""
    found: list[tuple[int, int]] = []
    kind = type(fsspec.filesystem("memory"))
    cat_file = kind.cat_file

    def noted(self: Any, path: str, start: int = 0, end: int = 0, **more: Any) -> bytes:
        found.append((start, end))
        time.sleep(0.002)
        return bytes(cat_file(self, path, start, end, **more))

    monkeypatch.setattr(kind, "cat_file", noted)
    return found


def failing(monkeypatch: pytest.MonkeyPatch, answers: list[Callable[[bytes], bytes]]) -> None:
    """Let the next answers of the store be made of the right ones."""
    kind = type(fsspec.filesystem("memory"))
    cat_file = kind.cat_file

    def fails(self: Any, path: str, *place: Any, **more: Any) -> bytes:
        right = bytes(cat_file(self, path, *place, **more))
        return answers.pop(0)(right) if answers else right

    monkeypatch.setattr(kind, "cat_file", fails)


def test_what_is_an_address() -> None:
    assert is_remote("s3://bucket/a.txt")
    assert not is_remote("file:///data/a.txt")
    assert place_at("file:///data/a.txt") == Path("/data/a.txt")
    assert place_at("a.txt", "s3://bucket/corpus") == RemotePath("s3://bucket/corpus/a.txt")
    assert place_at("/data/a.txt", "s3://bucket/corpus") == Path("/data/a.txt")
    assert place_at("C:\\a.txt", None) == Path("C:\\a.txt")


def test_the_parts_of_a_name() -> None:
    path = RemotePath("https://example.org/corpus/train.en.gz?token=a/b.c")
    assert (path.name, path.stem, path.suffix) == ("train.en.gz", "train.en", ".gz")
    assert str(path.parent) == "https://example.org/corpus"
    assert str(path.with_name("x")) == "https://example.org/corpus/x"


def test_an_unknown_scheme_is_said_with_those_that_there_are() -> None:
    with pytest.raises(DataError, match=r"from hdfs://; there are s3://, gs://, https://"):
        place_at("hdfs://cluster/a.txt")


def test_a_missing_package_is_said_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(paths.PACKAGES, "memory", "no_such_package")
    with pytest.raises(DataError, match=r"corpus/train.en needs .* pip install '.\[remote\]'"):
        RemotePath(URL).is_file()


def test_any_range_is_read_as_it_is() -> None:
    path, random = RemotePath(URL), Random(2)
    version = version_of(path)
    for _ in range(50):
        start, end = sorted(random.randrange(len(CONTENT) + 50) for _ in range(2))
        assert path.read(start, end, version) == CONTENT[start:end]
    with path.open() as file:
        assert file.read() == CONTENT
        file.seek(-7, os.SEEK_END)
        assert file.read() == CONTENT[-7:]
    with open_at(path, 100, version, 120) as file:
        assert file.read() == CONTENT[100:120]


def test_a_block_is_fetched_once(asked: list[tuple[int, int]]) -> None:
    path = RemotePath(URL)
    version = version_of(path)
    path.read(BLOCK + 5, BLOCK + 9, version)
    path.read(BLOCK + 1, 2 * BLOCK, version)
    assert asked == [(BLOCK, 2 * BLOCK)]
    with path.open() as file:
        file.read()
    assert asked[1:] == [(0, BLOCK), (2 * BLOCK, len(CONTENT))]  # what was missing, in runs


def test_a_block_is_not_fetched_twice_at_once(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = version_of(RemotePath(URL))
    with ThreadPoolExecutor(8) as threads:
        read = [threads.submit(RemotePath(URL).read, 10, 20, version) for _ in range(32)]
        assert {one.result() for one in read} == {CONTENT[10:20]}
    assert asked == [(0, BLOCK)]


def fetch_noting(start: int, end: int, log: str) -> bytes:
    with open(log, "a") as file:  # noqa: PTH123 (appended by several processes)
        file.write(f"{start}\n")
    time.sleep(0.01)  # as a store does, in which others come
    return CONTENT[start:end]


def read_all(folder: str, log: str, seed: int) -> bool:
    """In a process of its own: read single blocks in some order."""
    from transduce.storage.versions import Version

    cache, version = BlockCache(Path(folder), 1e9), Version(len(CONTENT), "1")
    numbers = list(range(10))
    Random(seed).shuffle(numbers)
    return all(
        cache.read(URL, version, n * BLOCK, (n + 1) * BLOCK, lambda a, b: fetch_noting(a, b, log))
        == CONTENT[n * BLOCK : (n + 1) * BLOCK]
        for n in numbers
    )


def test_processes_share_the_cache(tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with multiprocessing.get_context("fork").Pool(4) as pool:
        arguments = [(str(tmp_path / "blocks"), log, seed) for seed in range(4)]
        assert all(pool.starmap(read_all, arguments))
    fetched = Path(log).read_text().split()
    assert len(fetched) == len(set(fetched)) == 10


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_the_cache_is_bounded_and_keeps_what_was_used_last(
    tmp_path: Path, asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 4.5 * BLOCK
    monkeypatch.setenv(blocks.VARIABLE, f"{limit / 1e9:.9f}")
    path = RemotePath(URL)
    version = version_of(path)
    for number in range(10):
        path.read(number * BLOCK, number * BLOCK + 1, version)
        path.read(0, 1, version)  # in use all the time
        for age, file in enumerate(sorted((tmp_path / "cache").rglob("*.block"), key=used)):
            os.utime(file, (age, age))  # the clock of a file system is coarse
        assert size_of(tmp_path / "cache") <= limit
    assert len(asked) == 10  # the first block never left
    asked.clear()
    path.read(9 * BLOCK, 10 * BLOCK, version)
    assert asked == []
    path.read(1 * BLOCK, 2 * BLOCK, version)
    assert asked == [(BLOCK, 2 * BLOCK)]


def test_a_cache_whose_size_is_lost_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 4.5 * BLOCK
    monkeypatch.setenv(blocks.VARIABLE, f"{limit / 1e9:.9f}")
    path = RemotePath(URL)
    version = version_of(path)
    for number in range(10):
        for size in (tmp_path / "cache").rglob(blocks.SIZE):
            size.unlink()
        path.read(number * BLOCK, number * BLOCK + 1, version)
    assert size_of(tmp_path / "cache") <= limit


def used(path: Path) -> float:
    return path.stat().st_mtime


def test_a_file_larger_than_the_cache_does_not_empty_it(
    asked: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(blocks.VARIABLE, f"{3 * BLOCK / 1e9:.9f}")
    path = RemotePath(URL)
    path.read(0, 5, version_of(path))
    before = size_of(tmp_path / "cache")
    with path.open() as file:
        assert file.read() == CONTENT
    assert size_of(tmp_path / "cache") == before


def test_a_damaged_block_is_fetched_again(asked: list[tuple[int, int]], tmp_path: Path) -> None:
    path = RemotePath(URL)
    version = version_of(path)
    path.read(0, 5, version)
    (block,) = (tmp_path / "cache").rglob("*.block")
    raw = bytearray(block.read_bytes())
    raw[3] ^= 1
    block.write_bytes(raw)
    assert path.read(0, 5, version) == CONTENT[:5]
    block.write_bytes(raw[:1000])
    assert path.read(0, 5, version) == CONTENT[:5]
    assert asked == [(0, BLOCK)] * 3


def test_without_a_cache_that_can_be_written_all_is_fetched(
    asked: list[tuple[int, int]], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, where a folder is needed")
    path = RemotePath(URL)
    assert path.read(0, 5, version_of(path)) == CONTENT[:5]
    assert path.read(0, 5, version_of(path)) == CONTENT[:5]
    assert len(asked) == 2


def raised(error: Exception) -> Callable[[bytes], bytes]:
    def answer(right: bytes) -> bytes:
        raise error

    return answer


MOMENTARY = [
    raised(TimeoutError("it takes too long")),
    raised(ConnectionResetError("connection reset")),
    raised(OSError(errno.EBUSY, "please reduce your request rate")),
    lambda right: right[: len(right) // 2],
]


@pytest.mark.parametrize("number", range(len(MOMENTARY)))
def test_a_store_is_asked_again(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    path = RemotePath(URL)
    version = version_of(path)
    failing(monkeypatch, [MOMENTARY[number]] * 2)
    assert path.read(0, 5, version) == CONTENT[:5]
    failing(monkeypatch, [MOMENTARY[number]] * 3)
    with pytest.raises(DataError, match=r"train.en: the server fails again and again .*try later"):
        path.read(BLOCK, BLOCK + 5, version)


class NoCredentialsError(OSError):
    """As that of botocore."""


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (PermissionError("Access Denied"), r"your credentials do not allow this \(Access Denied\)"),
        (OSError("Forbidden: corpus/train.en"), r"your credentials do not allow this \(Forbidden"),
        (NoCredentialsError("Unable to locate credentials"), "there are no credentials for it on"),
        (
            OSError(errno.EINVAL, "Invalid bucket name"),
            r"cannot be used \(.*Invalid bucket",
        ),
    ],
)
def test_what_lasts_is_said_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, sentence: str
) -> None:
    path = RemotePath(URL)
    version = version_of(path)
    failing(monkeypatch, [raised(error)])
    with pytest.raises(DataError, match=sentence):
        path.read(0, 5, version)


def test_an_error_of_the_program_is_not_taken_for_one_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing(monkeypatch, [raised(ZeroDivisionError())])
    with pytest.raises(ZeroDivisionError):
        RemotePath(URL).read(0, 5, version_of(RemotePath(URL)))


@pytest.mark.parametrize("content", [CONTENT[:-1], b"x" + CONTENT[1:]])
def test_a_changed_file_is_said(store: Any, content: bytes) -> None:
    path = RemotePath(URL)
    version = version_of(path)
    path.read(0, 5, version)
    store.pipe("/corpus/train.en", content)
    shorter = r": it had 655,460 bytes, and has 655,459" if len(content) < len(CONTENT) else ""
    with pytest.raises(DataError, match=rf"train.en has changed since it was first read{shorter};"):
        path.read(BLOCK, BLOCK + 5, version)
    assert path.read(0, 5, version_of(path)) == content[:5]  # nothing old is left


def test_a_missing_file_is_said(store: Any) -> None:
    path = RemotePath("memory://corpus/none")
    assert not path.is_file()
    with pytest.raises(DataError, match="there is no file memory://corpus/none"):
        version_of(path)
    version = version_of(RemotePath(URL))
    store.rm("/corpus/train.en")
    with pytest.raises(DataError, match=r"no file memory://corpus/train.en any more; put it back"):
        RemotePath(URL).read(0, 5, version)


def test_patterns_and_folders(store: Any) -> None:
    store.pipe("/corpus/part/b.txt", b"b")
    store.pipe("/corpus/part/a.txt", b"a")
    found = RemotePath("memory://corpus/part/*.txt").glob()
    assert found == ["memory://corpus/part/a.txt", "memory://corpus/part/b.txt"]
    assert RemotePath("memory://corpus/part").names() == ["a.txt", "b.txt"]
    assert RemotePath("memory://corpus/part").is_dir()
    with pytest.raises(DataError, match="a web server does not list its files"):
        RemotePath("https://example.org/*.txt").glob()


def test_a_long_part_is_fetched_by_several_requests(asked: list[tuple[int, int]]) -> None:
    content = bytes(BLOCK) * (TOGETHER + 2)
    fsspec.filesystem("memory").pipe("/corpus/large", content)
    path = RemotePath("memory://corpus/large")
    assert path.read(BLOCK, len(content), version_of(path)) == content[BLOCK:]
    assert asked == [(BLOCK, TOGETHER * BLOCK), (TOGETHER * BLOCK, len(content))]
