"""Corpora and batch jobs in a real S3 server, behind a proxy that fails now and then.

Needs pip install '.[remote]' 'moto[server]', in an environment of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import cast

import pytest

from optional import skip_without
from s3_server import CREDENTIALS, Proxy, put, store_server
from transduce import recipe
from transduce.batch_inference.decoder import Decoded, Decoder
from transduce.batch_inference.job import Settings, open_job, read_job
from transduce.batch_inference.worker import rotated, work
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import DataError
from transduce.storage.positions import version_of
from transduce.storage.remote import RemotePath, paths
from transduce.storage.remote.blocks import BLOCK

skip_without("moto", "s3fs")

BYTES = Tokens.train(recipe.Tokens(level="byte"), [])
MODEL = Path(__file__).parents[1] / "fixtures" / "models" / "translate"
CORPUS = {"source": "train.src", "target": "train.tgt"}
WORDS = [
    " ".join(random.Random(number).choices("abcdefgh", k=2 + number % 7))
    for number in range(30_000)
]


def lines(texts: list[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


@pytest.fixture(scope="module")
def proxy() -> Iterator[Proxy]:
    """A server with a corpus, asked through a proxy; for all tests, as fsspec keeps connections."""
    import fsspec.config

    with pytest.MonkeyPatch.context() as patch, store_server() as port, Proxy(port) as proxy:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        # Of the library a shorter patience than usual.
        patch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": 1}})
        patch.setattr(paths, "WAITS", (0.05, 0.1, 0.2))
        put(port, "corpus")
        put(port, "out")
        put(port, "corpus/train.src", lines(WORDS))
        put(port, "corpus/train.tgt", lines([word[::-1] for word in WORDS]))
        put(port, "corpus/valid.src", lines(WORDS[:50]))
        put(port, "corpus/valid.tgt", lines([word[::-1] for word in WORDS[:50]]))
        yield proxy


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: Proxy) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    proxy.fault = lambda seen: ""
    proxy.seen.clear()
    return tmp_path / "cache"


def stream(folder: str, workers: int = 0) -> StreamingDataset:
    values = {"folder": folder, "train": CORPUS, "valid": CORPUS, "shuffle_buffer": 8192}
    data = recipe.Data.model_validate(values | {"workers": workers})
    return StreamingDataset(data.train, data, BYTES, BYTES)


def pools(one: StreamingDataset) -> list[bytes]:
    return [pool.source_ids.tobytes() + pool.target_ids.tobytes() for pool, _ in one.pools(0)]


def expected(folder: Path) -> list[bytes]:
    (folder / "train.src").write_bytes(lines(WORDS))
    (folder / "train.tgt").write_bytes(lines([word[::-1] for word in WORDS]))
    return pools(stream(str(folder)))


def drop_blocks(cache: Path) -> None:
    for block in cache.rglob("*.block"):
        block.unlink()


def test_faults_that_pass_change_nothing(tmp_path: Path, cache: Path, proxy: Proxy) -> None:
    one = stream("s3://corpus")
    proxy.failing("503", "truncated", "short")
    one.open()
    drop_blocks(cache)
    proxy.failing("truncated", "503", "timeout", "503")
    assert pools(one) == expected(tmp_path)
    drop_blocks(cache)
    proxy.failing("503", "503", "503", method="HEAD")
    assert len(pools(one)) == 4


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("503", "the server fails again and again"),
        ("short", "it is truncated: of the .* bytes from 0 on, only"),
        ("403", r"your credentials do not allow this \(Access Denied\)"),
    ],
)
def test_faults_that_stay_are_said(proxy: Proxy, fault: str, sentence: str) -> None:
    path = RemotePath("s3://corpus/train.src")
    version = version_of(path)
    proxy.failing(*[fault] * 100)
    with pytest.raises(DataError, match=f"s3://corpus/train.src: .*{sentence}"):
        path.read(0, 5, version)


def test_a_changed_and_a_truncated_object_are_said(cache: Path, proxy: Proxy) -> None:
    put(proxy.upstream, "corpus/other.txt", b"a" * 3 * BLOCK)
    path = RemotePath("s3://corpus/other.txt")
    version = version_of(path)
    assert path.read(0, 1, version) == b"a"
    put(proxy.upstream, "corpus/other.txt", b"b" * 3 * BLOCK)
    with pytest.raises(
        DataError, match=r"s3://corpus/other.txt has changed since it was first read;"
    ):
        path.read(BLOCK, BLOCK + 1, version)
    put(proxy.upstream, "corpus/other.txt", b"a" * BLOCK)
    with pytest.raises(
        DataError, match=r"other.txt has changed .*had 196,608 bytes, and has 65,536"
    ):
        path.read(BLOCK, BLOCK + 1, version)


def test_worker_processes_fetch_no_block_twice(
    tmp_path: Path, cache: Path, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = stream("s3://corpus", workers=2)
    one.open()
    one._executor()
    assert one._first_answer is not None
    one._first_answer.result()  # until then, all is read here
    drop_blocks(cache)
    proxy.seen.clear()
    assert pools(one) == expected(tmp_path)
    asked = [(seen.path, seen.range) for seen in proxy.gets()]
    assert len(asked) == len(set(asked)) > 4


def test_mistakes_are_said(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for url, sentence in [
        ("s3://corpus/nothing", "there is no file s3://corpus/nothing"),
        ("s3://nobucket/train.src", "there is no bucket nobucket; correct its name"),
        ("s3://B_!/x", "cannot be used .*correct the address"),
    ]:
        with pytest.raises(DataError, match=sentence):
            version_of(RemotePath(url))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({}, "there are no credentials for it on this machine: set AWS_ACCESS_KEY_ID"),
        (
            {"AWS_ENDPOINT_URL": "nonsense"},
            r"cannot be used \(Invalid endpoint: nonsense\); ",
        ),
        (
            {"AWS_PROFILE": "nobody"},
            r"cannot be used \(The config profile \(nobody\) could not ",
        ),
    ],
)
def test_settings_that_are_wrong(proxy: Proxy, settings: dict[str, str], sentence: str) -> None:
    """At once, in a process of its own: fsspec keeps the connection of this one."""
    code = (
        "from transduce.storage.remote import RemotePath, paths\n"
        "from transduce.errors import DataError\n"
        "paths.WAITS = (1000,)\n"
        "try: RemotePath('s3://corpus/train.src').version()\n"
        "except DataError as error: print(error)"
    )
    without = "_KEY" if not settings else "AWS_PROFILE"
    others = {name: value for name, value in os.environ.items() if without not in name}
    others |= {"HOME": "/nonexistent", **settings}
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env=others,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert re.search(sentence, shown.stdout)


RECIPE = """
name: store
data:
  folder: s3://corpus
  train: {source: train.src, target: train.tgt}
  valid: {source: valid.src, target: valid.tgt}
  tokens: {both: {level: symbol}}
  streaming: true
  shuffle_buffer: 4096
model:
  width: 16
  encoder: {layers: 1, heads: 2, feed_forward: 16}
  decoder: {layers: 1, heads: 2, feed_forward: 16}
train: {steps: 120, batch_tokens: 400, lr: 3e-3, warmup: 10, log_every: 10, device: cpu}
validation: {every: 30, limit: 5}
"""


def started(*words: object) -> subprocess.Popen[str]:
    """The command line, whose group can be killed as a whole."""
    return subprocess.Popen(
        [sys.executable, "-m", "transduce", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def ended(*words: object) -> str:
    process = started(*words)
    shown, _ = process.communicate()
    assert process.returncode == 0, shown
    return shown


@pytest.mark.slow
def test_training_killed_and_resumed_is_as_if_it_had_not_been(tmp_path: Path, proxy: Proxy) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE)
    ended("train", tmp_path / "r.yaml", "--output", tmp_path / "whole")
    process = started("train", tmp_path / "r.yaml", "--output", tmp_path / "killed")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step 70/"):
            break
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "report.html").exists()
    proxy.failing("503", "truncated", "503")
    ended("train", tmp_path / "r.yaml", "--output", tmp_path / "killed", "--resume")
    whole, killed = (tmp_path / name / "model.safetensors" for name in ("whole", "killed"))
    assert killed.read_bytes() == whole.read_bytes()


def objects(folder: str) -> dict[str, bytes]:
    import fsspec

    store = fsspec.filesystem("s3", skip_instance_cache=True)
    return {name.partition("/part-")[2] or name.rpartition("/")[2]: store.cat(name)
            for name in store.find(folder)}  # fmt: skip


def killed_and_continued(folder: str, count: int, kills: int, *words: object) -> None:
    """A batch job into a folder of the store, killed so many times while it decodes."""
    import fsspec

    store = fsspec.filesystem("s3", use_listings_cache=False)
    done = 0
    for _ in range(kills):
        process = started("batch", MODEL, "--output", f"s3://{folder}", *words)
        while process.poll() is None:
            store.invalidate_cache()
            now = len(store.glob(f"{folder}/part-*"))
            if now > done:
                break
            time.sleep(0.05)
        done = now
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert 0 < done < count, "nothing was killed in the middle"
    ended("batch", MODEL, "--output", f"s3://{folder}", *words)


@pytest.mark.slow
def test_a_batch_job_from_the_store_to_the_store_and_two_kills(proxy: Proxy) -> None:
    draw = random.Random(3)
    texts = ["".join(draw.choices("abcd", k=draw.randint(1, 9))) for _ in range(3000)]
    put(proxy.upstream, "corpus/in/0.txt", lines(texts[:2000]))
    put(proxy.upstream, "corpus/in/1.txt", lines(texts[2000:]))
    given = ("--input", "s3://corpus/in/*.txt", "--shard-lines", 100, "--workers", 2)
    ended("batch", MODEL, "--output", "s3://out/whole", *given)
    killed_and_continued("out/killed", 30, 2, *given)
    whole = objects("out/whole")
    assert objects("out/killed") == whole
    assert len(whole) == 31
    assert sum(text.count(b"\n") for name, text in whole.items() if name.endswith(".txt")) == 3000


class Upper:
    """In place of a model: its output is the source in capitals."""

    needs_source = True

    def decode(self, sources: Sequence[str]) -> list[Decoded]:
        return [Decoded(source.upper()) for source in sources]


def work_on(folder: str, number: int) -> None:
    job = read_job(RemotePath(folder))
    work(job, rotated(job.shards, number, 2), cast(Decoder, Upper()))


@pytest.mark.slow
def test_a_million_rows_and_five_kills(proxy: Proxy) -> None:
    """Two processes decode, and one of them is killed every few shards."""
    texts = [f"row {number} of a million" for number in range(1_000_000)]
    for part in range(4):
        content = lines(texts[part * 250_000 : (part + 1) * 250_000])
        put(proxy.upstream, f"corpus/million/{part}.txt", content)
    folder, settings = "s3://out/million", Settings(shard_lines=20_000)
    place = RemotePath(folder)
    patterns = ["s3://corpus/million/*.txt"]
    job = open_job(MODEL, patterns, place, settings, lambda: None, lambda _: None)
    assert len(job.shards) == 52
    fork = multiprocessing.get_context("fork")
    started = [fork.Process(target=work_on, args=(folder, number)) for number in range(2)]
    for process in started:
        process.start()
    kills = 0
    while left := job.unfinished(job.shards):
        if kills < 5 and len(left) < 52 - 6 * kills:
            victim = started.pop(0)
            victim.kill()
            victim.join()
            started.append(fork.Process(target=work_on, args=(folder, kills)))
            started[-1].start()
            kills += 1
        time.sleep(0.1)
    for process in started:
        process.join()
    assert kills == 5
    found = objects("out/million")
    outputs = [found[name] for name in sorted(found) if name.endswith(".txt")]
    assert b"".join(outputs) == lines([text.upper() for text in texts])


def web_server(content: bytes, ranges: bool) -> ThreadingHTTPServer:
    """One file, with or without answers to requests for a part of it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "none" in self.path or "secret" in self.path:
                self.send_error(404 if "none" in self.path else 403)
                return
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
            part = content
            if asked and ranges:
                part = content[int(asked[1]) : int(asked[2]) + 1]
            self.send_response(206 if asked and ranges else 200)
            self.send_header("Content-Length", str(len(part)))
            self.send_header("ETag", '"1"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(part)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_files_of_the_web() -> None:
    content = lines(WORDS)
    with web_server(content, ranges=True) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        path = RemotePath(f"{url}/train.src?version=1")
        assert path.read(3 * BLOCK, 3 * BLOCK + 9, version_of(path)) == content[3 * BLOCK :][:9]
        with path.open() as file:
            assert file.read() == content
        for name, sentence in [("none", "there is no file"), ("secret", "do not allow this")]:
            with pytest.raises(DataError, match=sentence):
                version_of(RemotePath(f"{url}/{name}"))
        server.shutdown()
    with web_server(content, ranges=False) as server:
        path = RemotePath(f"http://127.0.0.1:{server.server_port}/train.src")
        with pytest.raises(DataError, match="does not answer requests for a part of a file"):
            path.read(BLOCK, BLOCK + 9, version_of(path))
        server.shutdown()
    with pytest.raises(DataError, match="the server fails again and again"):
        version_of(path)
