"""A batch job whose inputs and outputs are in a store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import fsspec
import pytest

from transduce.batch_inference.decoder import Decoded, Decoder
from transduce.batch_inference.job import Job, Settings, open_job
from transduce.batch_inference.worker import count_errors, work
from transduce.errors import DataError
from transduce.storage.remote import RemotePath

MODEL = Path(__file__).parents[2] / "fixtures" / "models" / "translate"
LINES = [f"line {n} ü" for n in range(100)]
LINES[17] = ""


class Upper:
    """In place of a model: its output is the source in capitals."""

    needs_source = True

    def __init__(self, dies_at: str = "") -> None:
        self.dies_at = dies_at

    def decode(self, sources: Sequence[str]) -> list[Decoded]:
        if self.dies_at in sources:
            raise KeyboardInterrupt
        return [Decoded(source.upper()) for source in sources]


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    store.pipe("/in/a.txt", "".join(f"{line}\n" for line in LINES[:60]).encode())
    store.pipe("/in/b.txt", "".join(f"{line}\n" for line in LINES[60:]).encode())
    yield store
    store.store.clear()


def opened(output: str, pattern: str = "memory://in/*.txt") -> Job:
    settings = Settings(shard_lines=7)
    patterns = [pattern] if pattern else []
    return open_job(MODEL, patterns, RemotePath(output), settings, lambda: None, lambda _: None)


def run(job: Job, decoder: Upper) -> None:
    work(job, job.shards, cast(Decoder, decoder))


def content(store: Any, folder: str) -> dict[str, bytes]:
    return {name.removeprefix(folder): store.cat(name) for name in store.find(folder)}


def test_outputs_are_in_the_store_in_order(store: Any) -> None:
    job = opened("memory://out")
    run(job, Upper())
    found = content(store, "/out")
    outputs = b"".join(found[name] for name in sorted(found) if name.startswith("/part-"))
    assert outputs.decode().splitlines() == [line.upper() for line in LINES]
    assert sorted(name for name in found if "part" not in name) == ["/manifest.json"]
    assert count_errors(job) == (1, 0)
    assert job.unfinished(job.shards) == []


def test_an_interrupted_job_goes_on_and_ends_with_the_same_bytes(store: Any) -> None:
    run(opened("memory://whole"), Upper())
    with pytest.raises(KeyboardInterrupt):
        run(opened("memory://other"), Upper(dies_at=LINES[50]))
    job = opened("memory://other", "")  # as another machine would: by the manifest alone
    done = len(job.shards) - len(job.unfinished(job.shards))
    assert 0 < done < len(job.shards)
    decoded: list[str] = []

    class Noted(Upper):
        def decode(self, sources: Sequence[str]) -> list[Decoded]:
            decoded.extend(sources)
            return super().decode(sources)

    run(job, Noted())
    assert content(store, "/other") == content(store, "/whole")
    assert LINES[0] not in decoded  # of a finished shard
    assert LINES[-1] in decoded


def test_changed_inputs_and_other_files_are_said(store: Any) -> None:
    job = opened("memory://out")
    store.pipe("/in/a.txt", b"another\n" * 60)
    with pytest.raises(
        DataError, match=r"memory://in/a.txt has changed since the job in memory://"
    ):
        run(job, Upper())
    with pytest.raises(DataError, match=r"outputs of other inputs: memory://in/a.txt has changed"):
        opened("memory://out")
    store.pipe("/taken/file.txt", b"")
    with pytest.raises(DataError, match=r"memory://taken holds other files \(file.txt\)"):
        opened("memory://taken")
    with pytest.raises(DataError, match="no file matches memory://none/"):
        opened("memory://new", "memory://none/*.txt")
    with pytest.raises(DataError, match="there is no job in memory://new to continue"):
        opened("memory://new", "")
    with pytest.raises(DataError, match="a web server takes no files"):
        opened("https://example.org/out")


def test_a_store_that_only_takes_files_is_enough(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: RemotePath) -> None:
        raise DataError(f"{path}: your credentials do not allow this")

    monkeypatch.setattr(RemotePath, "unlink", refuse)
    job = opened("memory://out")
    run(job, Upper())
    assert job.unfinished(job.shards) == []
