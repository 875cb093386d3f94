"""Corpora and batch jobs in Google's storage: a server that speaks its protocol, behind a proxy
that fails now and then.

Needs pip install '.[remote]' gcp-storage-emulator, in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from optional import skip_without
from s3_server import Proxy, store_server
from transduce import recipe
from transduce.batch_inference.decoder import Decoded, Decoder
from transduce.batch_inference.job import Settings, open_job
from transduce.batch_inference.worker import work
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError
from transduce.storage.positions import version_of
from transduce.storage.remote import RemotePath, paths
from transduce.storage.remote.blocks import BLOCK

skip_without("gcp_storage_emulator", "gcsfs")

BYTES = Tokens.train(recipe.Tokens(level="byte"), [])
MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "translate"
LINES = [f"line {number} " + "abc " * (number % 9) for number in range(20_000)]
START = (
    "import sys, logging; logging.disable(logging.CRITICAL)\n"
    "sys.stderr = open('/dev/null', 'w')\n"  # a client that has read enough is a traceback there
    "from gcp_storage_emulator.server import create_server\n"
    "server = create_server('127.0.0.1', 0, in_memory=True, default_bucket='corpus')\n"
    "server.start(); print(server._api._httpd.server_address[1], flush=True)\n"
    "sys.stdin.read(); server.stop()"
)


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """For all tests, as fsspec keeps connections."""
    with pytest.MonkeyPatch.context() as patch, store_server(START) as port, Proxy(port) as proxy:
        patch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        patch.setattr(paths, "WAITS", (0.05, 0.1, 0.2))
        yield proxy


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    proxy.fault = lambda seen: ""
    return tmp_path / "cache"


def put(folder: Path, name: str, content: bytes) -> RemotePath:
    place = RemotePath(f"gs://corpus/{name}")
    (folder / "given").write_bytes(content)
    place.upload(folder / "given")
    return place


def in_lines(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def pools(folder: str) -> list[bytes]:
    files = {"source": "part-*.src", "target": "part-*.tgt"}
    values = {"folder": folder, "train": files, "valid": files, "shuffle_buffer": 8192}
    data = recipe.Data.model_validate(values)
    one = StreamingDataset(data.train, data, BYTES, BYTES)
    return [pool.source_ids.tobytes() + pool.target_ids.tobytes() for pool, _ in one.pools(0)]


def test_a_stream_is_that_of_the_same_files_on_a_disk(tmp_path: Path, proxy: Proxy) -> None:
    (tmp_path / "disk").mkdir()
    for part in range(2):
        some = LINES[part * 10_000 : (part + 1) * 10_000]
        for side, texts in (("src", some), ("tgt", [text[::-1] for text in some])):
            put(tmp_path, f"train/part-{part}.{side}", in_lines(texts))
            (tmp_path / "disk" / f"part-{part}.{side}").write_bytes(in_lines(texts))
    faults = ["503", "truncated", "503", "short"]
    proxy.fault = lambda seen: faults.pop(0) if seen.range and faults else ""
    found = pools("gs://corpus/train")
    assert not faults
    assert len(found) == 3
    assert found == pools(str(tmp_path / "disk"))


def test_changed_missing_and_refused_objects_are_said(tmp_path: Path, proxy: Proxy) -> None:
    path = put(tmp_path, "other.txt", b"a" * 3 * BLOCK)
    version = version_of(path)
    assert path.read(BLOCK - 1, BLOCK + 1, version) == b"aa"
    put(tmp_path, "other.txt", b"b" * 3 * BLOCK)
    with pytest.raises(DataError, match=r"gs://corpus/other.txt has changed since it was first re"):
        path.read(2 * BLOCK, 2 * BLOCK + 1, version)
    put(tmp_path, "other.txt", b"a" * BLOCK)
    with pytest.raises(DataError, match=r"changed .*had 196,608 bytes, and has 65,536"):
        path.read(2 * BLOCK, 2 * BLOCK + 1, version)
    for url, sentence in [
        ("gs://corpus/nothing", "there is no file gs://corpus/nothing"),
        ("gs://nobucket/train.src", "there is no bucket nobucket; correct its name"),
    ]:
        with pytest.raises(DataError, match=sentence):
            version_of(RemotePath(url))
    proxy.fault = lambda seen: "403"
    with pytest.raises(DataError, match=r"other.txt: .*your credentials do not allow this"):
        version_of(path)


class Upper:
    """In place of a model: its output is the source in capitals."""

    needs_source = True

    def decode(self, sources: Sequence[str]) -> list[Decoded]:
        return [Decoded(source.upper()) for source in sources]


def test_a_batch_job_from_the_store_to_the_store(tmp_path: Path, proxy: Proxy) -> None:
    texts = [f"row {number}" for number in range(500)]
    put(tmp_path, "in/0.txt", in_lines(texts[:300]))
    put(tmp_path, "in/1.txt", in_lines(texts[300:]))
    place = RemotePath("gs://corpus/out")

    def job() -> None:
        given = (MODEL, ["gs://corpus/in/*.txt"], place, Settings(shard_lines=100))
        one = open_job(*given, lambda: None, lambda _: None)
        assert len(one.shards) == 5
        work(one, one.shards, cast(Decoder, Upper()))

    job()
    outputs = [name for name in place.names() if name.endswith(".txt")]
    (place / outputs[2]).unlink()
    before = {name: version_of(place / name) for name in outputs if name != outputs[2]}
    job()
    assert {name: version_of(place / name) for name in before} == before  # nothing is done twice
    found = "".join((place / name).read_text() for name in outputs)
    assert found.encode() == in_lines([text.upper() for text in texts])
