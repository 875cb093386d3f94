"""What a client may make the server do: each size has a bound, checked before any work, and after
the last request nothing is left of it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_server import english_german, tea_model
from forked import Forked
from served import Held, Running, serving, until
from tiny_models import tiny
from transduce.serving.auth import Keys
from transduce.serving.limits import Limits
from transduce.serving.protocols.openai.generation import StopFinder
from transduce.serving.settings import ServiceSettings

LIMITS = Limits(
    texts=5,
    characters=50,
    body_bytes=4000,
    upload_bytes=10_000,
    beam=6,
    nbest=4,
    samples=8,
    length=30,
    outputs=6,
    phrases=3,
    included_characters=10,
    glossary_entries=2,
    combined=2,
    stops=2,
    stop_characters=5,
    json_depth=10,
    parts=6,
    field_bytes=500,
    alternatives=3,
    inspected_characters=20,
    alternative_translations=0,
    keep_alive_seconds=7,
)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = {"en-de": english_german(), "tea": tea_model()}
    with serving(models, ServiceSettings(limits=LIMITS)) as running:
        yield running
        idle_again(running)


def idle_again(server: Running) -> None:
    """Nothing is left of requests: no work that waits, no batch, no bytes, no folder."""
    engine, service = server.engine, server.service
    until(lambda: not service.open, "all requests are over")
    until(lambda: not engine._scheduler._batches, "nothing is decoded")
    assert engine._admission.queued == 0
    assert type(engine._admission.queued) is int
    assert engine._scheduler._waiting == []
    assert (engine.running, engine.waiting) == (0, 0)
    assert (service.in_memory, service.on_disk) == (0, 0)
    assert not service.settings.folders


RUN = {"model": "en-de", "input": "tea"}
TEA = {"q": "tea", "source": "en", "target": "de"}
COMPLETE = {"model": "tea", "prompt": "tea", "max_tokens": 2}
CHAT = {"model": "en-de", "messages": [{"role": "user", "content": "tea"}]}


@pytest.mark.parametrize(
    ("path", "body", "name", "allowed", "refused"),
    [
        ("/api/run", {"model": "en-de"}, "inputs", ["a"] * 5, ["a"] * 6),
        ("/api/run", {}, "input", "a" * 50, "a" * 51),
        ("/api/run", RUN, "beam", 6, 7),
        ("/api/run", {**RUN, "beam": 6}, "groups", 6, 7),
        ("/api/run", RUN, "nbest", 4, 5),
        ("/api/run", {**RUN, "mbr": "chrf"}, "samples", 8, 9),
        ("/api/run", RUN, "min_length", 30, 31),
        ("/api/run", RUN, "max_length", 30, 31),
        ("/api/run", {"model": "en-de", "nbest": 2}, "inputs", ["a"] * 3, ["a"] * 4),
        ("/api/run", RUN, "exclude", ["a"] * 3, ["a"] * 4),
        ("/api/run", RUN, "exclude", ["a" * 25] * 2, ["a" * 26] * 2),
        ("/api/run", RUN, "include", ["a" * 5] * 2, ["a" * 6] * 2),
        ("/api/run", RUN, "glossary", {"tea": "a" * 10}, {"tea": "a" * 11}),
        ("/api/run", RUN, "glossary", {"a": "a", "b": "a"}, {"a": "a", "b": "a", "c": "a"}),
        ("/api/look", RUN, "glossary", {"tea": "a" * 10}, {"tea": "a" * 11}),
        ("/api/run", {**RUN, "stream": True}, "glossary", {"tea": "a"}, {"tea": "a" * 11}),
        ("/api/run", RUN, "only", ["tea"] * 3, ["tea"] * 4),
        ("/api/run", RUN, "only", ["a" * 25] * 2, ["a" * 26] * 2),
        ("/api/run", RUN, "prefix", "a" * 20, "a" * 51),
        ("/api/run", RUN, "ensemble", ["en-de"] * 2, ["en-de"] * 3),
        ("/api/run", {**RUN, "stream": True}, "alternatives", 3, 4),
        ("/api/align", {"inputs": ["a"]}, "targets", ["a" * 20], ["a" * 51]),
        ("/api/look", {}, "input", "a" * 20, "a" * 21),
        ("/translate", {"source": "en", "target": "de"}, "q", ["a"] * 5, ["a"] * 6),
        ("/translate", {"source": "en", "target": "de"}, "q", "a" * 50, "a" * 51),
        ("/translate", TEA, "glossary", {"tea": "a" * 10}, {"tea": "a" * 11}),
        ("/translate", TEA, "glossary", {"a": "a", "b": "a"}, {"a": "a", "b": "a", "c": "a"}),
        ("/translate", {"q": "a", "source": "en", "target": "de"}, "alternatives", 0, 1),
        ("/v2/translate", {"source_lang": "EN", "target_lang": "DE"}, "text", ["a"] * 5, ["a"] * 6),
        ("/v1/completions", COMPLETE, "prompt", ["a"] * 5, ["a"] * 6),
        ("/v1/completions", COMPLETE, "prompt", "a" * 50, "a" * 51),
        ("/v1/completions", COMPLETE, "n", 4, 5),
        ("/v1/completions", {**COMPLETE, "n": 3}, "prompt", ["a"] * 2, ["a"] * 3),
        ("/v1/completions", {**COMPLETE, "n": 3, "stream": True}, "prompt", ["a"], ["a"] * 3),
        ("/v1/completions", COMPLETE, "max_tokens", 30, 31),
        ("/v1/completions", COMPLETE, "stop", ["x"] * 2, ["x"] * 3),
        ("/v1/completions", COMPLETE, "stop", "x" * 5, "x" * 6),
        ("/v1/chat/completions", CHAT, "max_tokens", 30, 31),
        ("/v1/chat/completions", CHAT, "stop", "x" * 5, "x" * 6),
        ("/v1/chat/completions", {**CHAT, "temperature": 1}, "n", 4, 5),
    ],
)
def test_a_size_at_its_limit_is_answered_and_one_above_is_refused_before_any_work(
    server: Running, path: str, body: dict[str, Any], name: str, allowed: Any, refused: Any
) -> None:
    first = server.post(path, {**body, name: allowed})
    assert first.status_code == 200, first.text
    begun = server.engine._scheduler.submit
    server.engine._scheduler.submit = None  # type: ignore[method-assign, assignment]
    try:
        answer = server.post(path, {**body, name: refused})
    finally:
        server.engine._scheduler.submit = begun  # type: ignore[method-assign]
    assert answer.status_code in (400, 413), answer.text
    assert "error" in answer.text or "message" in answer.text
    idle_again(server)


@pytest.mark.parametrize("path", ["/api/run", "/translate", "/v1/completions", "/v2/translate"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 3000,
        b'{"a":' * 700,
        b'{"a": [' + b"[[[[[[[[[[1]]]]]]]]]]" + b"]}",
        b'{"seed": ' + b"9" * 400 + b"}",
        b'{"input": "a", "temperature": 1e999}',
        b'{"stream_options": 5, "stream": true, "prompt": "a", "model": "tea"}',
        b'{"q": "\\ud800", "text": "\\ud800"}',
        b"\xff",
        b"null",
    ],
)
def test_hostile_json_is_a_mistake_of_the_client(server: Running, path: str, body: bytes) -> None:
    answer = server.client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 413), answer.text


def test_nesting_is_allowed_up_to_its_limit(server: Running) -> None:
    def post(depth: int) -> str:
        body = b'{"x": ' + b"[" * depth + b"]" * depth + b', "y": "' + b"[" * 30 + b'"}'
        return server.client.post("/api/run", content=body).json()["error"]["message"]

    assert "there is no field x" in post(9)
    assert "nested more than 10 levels" in post(10)
    wide = json.dumps({"x": [[]] * 200}).encode()
    assert "there is no field x" in server.client.post("/api/run", content=wide).text


@pytest.mark.parametrize(("field", "value"), [("seed", 10**400), ("n", 10**400), ("n", 1e300)])
def test_large_numbers_are_refused(server: Running, field: str, value: Any) -> None:
    answer = server.post("/v1/completions", {**COMPLETE, field: value})
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    "more",
    [
        {"logprobs": True},
        {"logprobs": True, "top_logprobs": 2},
        {"stop": ["§"]},
        {"stop": "§", "logprobs": True},
        {"n": 1},
        {"user": "x"},
        {"seed": 4},
    ],
)
def test_a_chat_answer_does_not_depend_on_unrelated_fields(
    server: Running, more: dict[str, Any]
) -> None:
    asked = {**CHAT, "messages": [{"role": "user", "content": "a cup of tea"}]}
    plain, other = (
        server.post("/v1/chat/completions", one).json() for one in (asked, asked | more)
    )
    (expected,), (found,) = plain["choices"], other["choices"]
    greedy = server.run(model="en-de", input="a cup of tea", beam=1)[0]["text"]
    assert expected["message"]["content"] != greedy  # otherwise this shows nothing
    assert found["message"] == expected["message"]
    assert found["finish_reason"] == expected["finish_reason"]
    assert other["usage"] == plain["usage"]
    if "logprobs" in more:
        pieces = [one["token"] for one in found["logprobs"]["content"]]
        assert "".join(pieces) == expected["message"]["content"]


def test_a_stop_sequence_cuts_the_answer_of_the_beam(server: Running) -> None:
    (expected,) = server.post("/v1/chat/completions", CHAT).json()["choices"]
    text = expected["message"]["content"]
    (found,) = server.post("/v1/chat/completions", CHAT | {"stop": text[2]}).json()["choices"]
    assert found["message"]["content"] == text[: text.index(text[2])]
    assert found["finish_reason"] == "stop"


def test_the_search_for_stop_sequences_takes_linear_time() -> None:
    finder = StopFinder(["a" * 1000 + "b", "ab" * 500 + "c"])
    begin = time.process_time()
    shown = "".join(finder.add("a" * 100) for _ in range(1000))
    assert len(shown) == 100 * 1000 - 1000
    assert finder.rest() == "a" * 1000
    assert time.process_time() - begin < 20  # quadratic, it takes minutes


def test_one_client_cannot_make_the_server_keep_its_lists(server: Running) -> None:
    plans = server.engine._plans
    for number in range(20):
        server.run(**RUN, only=["tea", str(number)])
    assert not any("only" in str(key) for key in plans._plans)
    assert len(plans._in_use) <= 2
    for number in range(300):
        server.engine._plans.find(
            server.engine.catalogue["en-de"], {"length_penalty": number / 100}, None, "run"
        )
    assert len(plans._plans) <= 256


def test_sampling_requests_with_different_seeds_share_batches() -> None:
    model = english_german()
    sizes: list[int] = []
    run = model.run

    def counted(sources: list[str], **settings: Any) -> Any:
        sizes.append(len(sources))
        return run(sources, **settings)

    model.run = counted  # type: ignore[method-assign]
    asked = [{"input": "a cup of tea", "sample": True, "seed": seed} for seed in range(8)]
    expected = [run([one["input"]], sample=True, seed=one["seed"])[0].text for one in asked]
    assert len(set(expected)) > 4
    with serving({"en-de": model}) as server:
        held = Held(model)
        found: dict[int, str] = {}

        def ask(number: int) -> None:
            found[number] = server.run(**asked[number])[0]["text"]

        clients = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        clients[0].start()
        until(lambda: held.steps > 0, "the first is decoded")
        for client in clients[1:]:
            client.start()
        until(lambda: server.engine.waiting == 7, "the others wait")
        held.free.set()
        for client in clients:
            client.join(timeout=100)
        idle_again(server)
    assert [found[number] for number in range(8)] == expected
    assert sizes == [1, 7]


# ------------------------------------------------------------------------- keys and bodies


def raw(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)))
    made.settimeout(60)
    return made


def test_nothing_is_kept_for_a_client_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = Limits(keyless_bytes=3000, body_bytes=100_000)
    settings = ServiceSettings(keys=Keys(["key"]), limits=limits)
    with serving({"en-de": english_german()}, settings) as server:
        head = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}\r\n{}\r\n"
        form = "multipart/form-data; boundary=x"
        file = '--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\ntea'
        key = '--x\r\nContent-Disposition: form-data; name="api_key"\r\n\r\nwrong\r\n'
        for path, kind, length, sent, status in (
            ("/api/run", "multipart/mixed", 900_000_000, "", b" 403 "),
            ("/v1/audio/transcriptions", form, 900_000_000, "", b" 401 "),
            ("/translate_file", form, 900_000_000, file, b" 403 "),  # the file comes first
            ("/translate_file", form, 900_000_000, key + file, b" 403 "),
            ("/translate", "application/json", 900_000, "", b" 413 "),
            ("/translate", form, 900_000, "-" * 3500, b" 413 "),
        ):
            with raw(server) as client:
                announced = head.format(path, kind, f"Content-Length: {length}\r\n")
                client.sendall((announced + sent).encode())
                assert status in client.recv(4096).splitlines()[0], path
            assert list(tmp_path.iterdir()) == []
        good = {"q": "tea", "source": "en", "target": "de"}
        assert server.post("/translate", good).status_code == 403
        assert server.post("/suggest", {}).json()["error"] == "the API key is missing or unknown"
        for sent in ({"json": good | {"api_key": "key"}}, {"data": good | {"api_key": "key"}}):
            assert server.client.post("/translate", **sent).status_code == 200
        fields = {name: (None, value) for name, value in (good | {"api_key": "key"}).items()}
        assert server.client.post("/translate", files=fields).status_code == 200
        parts = {"api_key": (None, "key"), "target": (None, "de"), "source": (None, "en")}
        whole = parts | {"file": ("a.txt", b"tea")}
        assert server.client.post("/translate_file", files=whole).status_code == 200
        late = {"file": ("a.txt", b"tea")} | parts
        assert server.client.post("/translate_file", files=late).status_code == 403
        until(lambda: len(list(tmp_path.iterdir())) == 1, "only the translated file is kept")
        assert (server.service.in_memory, server.service.on_disk) == (0, 0)


def test_a_form_has_its_limits(server: Running) -> None:
    def post(files: Any) -> httpx.Response:
        return server.client.post("/translate_file", files=files)

    many = [("a", (None, "x"))] * 7
    assert post(many).status_code == 413
    assert post([("a", (None, "x" * 600)), ("file", ("a.txt", b"x"))]).status_code == 413
    assert post([("file", ("a.txt", b"x" * 11_000))]).status_code == 413
    pairs = "&".join(["a=1"] * 7)
    form = {"content-type": "application/x-www-form-urlencoded"}
    answer = server.client.post("/translate", content=pairs, headers=form)
    assert "more than 6 fields" in answer.json()["error"]
    boundary = {"content-type": "multipart/form-data; boundary=" + "x" * 300}
    assert server.client.post("/translate_file", content=b"x", headers=boundary).status_code == 400
    file = server.client.post("/translate", files={"q": ("a.txt", b"x")})
    assert "takes no files" in file.json()["error"]
    # Where no files are taken, a form is no longer than another body.
    large = {"content-type": "multipart/form-data; boundary=x", "content-length": "5000"}
    answer = server.client.post("/v1/completions", content=b"x" * 5000, headers=large)
    assert answer.status_code == 413
    idle_again(server)


def test_bodies_have_a_limit_together() -> None:
    limits = Limits(memory_bytes=3000, disk_bytes=2000)
    with serving({"en-de": english_german()}, ServiceSettings(limits=limits)) as server:
        head = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"
        with raw(server) as first, raw(server) as second:
            first.sendall(head + b" " * 2000)
            until(lambda: server.service.in_memory == 2000, "the first has arrived")
            second.sendall(head + b" " * 2000)
            assert b" 429 " in second.recv(4096).splitlines()[0]
            until(lambda: server.service.in_memory == 2000, "the second is forgotten")
            assert server.run(input="tea")
        until(lambda: server.service.in_memory == 0, "the first has gone")
        answer = server.client.post("/translate_file", files={"file": ("a.txt", b"x" * 2500)})
        assert answer.status_code == 429
        idle_again(server)


# ----------------------------------------------------------------------------------- time


def test_slow_and_dripping_clients_are_not_waited_for() -> None:
    limits = Limits(idle_seconds=0.4, bytes_a_second=1000, head_bytes=2000)
    with serving({"tiny": tiny()}, ServiceSettings(limits=limits)) as server:
        head = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n"

        def drip(client: socket.socket, first: bytes, part: bytes) -> bytes:
            client.settimeout(0.05)
            end = time.monotonic() + 60
            try:
                client.sendall(first)
                while time.monotonic() < end:
                    try:
                        return client.recv(4096)
                    except TimeoutError:
                        client.sendall(part)
            except OSError:
                return b""
            raise AssertionError("the server waits for ever")

        with raw(server) as client:
            assert b" 408 " in drip(client, head, b" ").splitlines()[0]
        for begin in (b"", b"POST /api/run HTTP/1.1\r\nx: "):
            with raw(server) as client:
                assert drip(client, begin, b"a" if begin else b"\r\n") == b""
        with raw(server) as client:  # a second head on the same connection
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b" 200 " in client.recv(4096).splitlines()[0]
            assert drip(client, b"GET /hea", b"l") == b""
        with raw(server) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nx: " + b"x" * 200_000)
            with_answer = client.recv(4096)
            assert b" 431 " in with_answer.splitlines()[0]
        until(lambda: not server.service.open, "all are gone")


def test_a_client_that_leaves_is_noticed_whatever_the_size_of_its_body() -> None:
    model = tiny()
    held = Held(model)
    with serving({"tiny": model}) as server:
        for size in (100, 100_000, 200_000, 1_000_000):
            text = json.dumps({"input": "zuko", "beam": 1, "min_length": 30}).encode()
            body = text + b" " * size
            head = f"POST /api/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            before = held.steps
            with raw(server) as client:
                client.sendall(head.encode() + b"\r\n\r\n" + body[:100])
                until(lambda: server.service.in_memory > 0, "it has begun to arrive")
                client.sendall(body[100:])
                until(lambda before=before: held.steps > before, "it is decoded")
            until(lambda: not server.service.open, f"the client with {size:,} bytes has left")
            held.step(3)
            until(lambda: not server.engine._scheduler._batches, "its batch ends")
        held.free.set()
        idle_again(server)


def test_minimum_bayes_risk_decoding_ends_when_its_client_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transduce.decoding.combine import rerank

    compared, free = [], threading.Event()

    def slow(measure: Any, text: str, reference: str) -> float:
        compared.append(text)
        free.wait(0.02)
        return 1.0

    monkeypatch.setattr(rerank, "_utility", slow)
    limits = Limits(seconds=0.3)
    with serving({"tiny": tiny()}, ServiceSettings(limits=limits)) as server:
        answer = server.post("/api/run", {"input": "a cup of tea", "mbr": "chrf", "samples": 100})
        assert answer.status_code == 504
        until(lambda: not server.engine._scheduler._batches, "the rest is left out")
        assert len(compared) < 100 * 50
        free.set()
        assert server.run(input="tea")
        idle_again(server)


def test_a_request_that_alone_takes_too_long_is_refused_and_others_are_not() -> None:
    model = tiny()
    limits = Limits(queue_seconds=20.0, batch_tokens=100)
    with serving({"tiny": model}, ServiceSettings(limits=limits)) as server:
        server.engine._admission.speed.add(1000.0, 100.0)  # ten a second
        answer = server.post("/api/run", {"inputs": ["a cup of tea"] * 100, "beam": 1})
        assert answer.status_code == 413, answer.text
        assert "longer than the 20 s" in answer.json()["error"]["message"]
        assert server.run(input="tea", beam=1)
        idle_again(server)


def test_sigterm_ends_the_process_in_time_whatever_it_is_doing(tmp_path: Path) -> None:
    """One request takes much longer; its client is told, and the process ends."""
    tiny().save(tmp_path / "model")
    options = ["--port", "0", "--no-log", "--accept-seconds", "0.1", "--drain-seconds", "1"]
    options += ["--max-samples", "1000"]
    command = [sys.executable, "-m", "transduce", "serve", str(tmp_path / "model"), *options]
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        asked = {"input": "tea", "mbr": "chrf", "samples": 700, "min_length": 20}
        answers: list[httpx.Response] = []

        def ask() -> None:
            with httpx.Client(trust_env=False, timeout=200) as client:
                answers.append(client.post(f"{url}/api/run", json=asked))

        client = threading.Thread(target=ask)
        client.start()
        with httpx.Client(base_url=url, trust_env=False, timeout=200) as other:
            until(lambda: other.get("/ready").json()["running"] == 1, "it is decoded")
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=100)
        assert time.monotonic() - begin < 30  # 1 and what a busy machine adds
        client.join(timeout=100)
        assert [one.status_code for one in answers] == [503]
    finally:
        process.kill()
        process.communicate()


def test_links_to_translated_files_have_the_public_address() -> None:
    model = {"en-de": english_german()}
    form = {"target": (None, "de"), "source": (None, "en"), "file": ("a.txt", b"tea")}
    for public, begin in (
        (None, "http://localhost:"),
        ("https://a.example/x/", "https://a.example/x/"),
    ):
        with serving(model, ServiceSettings(public_url=public)) as server:
            port = server.url.rpartition(":")[2]
            answer = server.client.post(f"http://localhost:{port}/translate_file", files=form)
            found = answer.json()["translatedFileUrl"]
            assert found.startswith(f"{begin}{'' if public else port + '/'}download_file/")


def test_an_idle_server_takes_what_it_may_take() -> None:
    """Sums of work in whole numbers come back to 0; in floating point they did not."""
    limits = Limits(queue_tokens=60)
    with serving({"tiny": tiny()}, ServiceSettings(limits=limits)) as server:
        for count in range(1, 12):
            server.run(inputs=["a"] * count + ["iroh"], beam=1, exclude=["k"])
            idle_again(server)
        assert server.run(inputs=["a cup of tea"] * 4, beam=1)


def test_a_request_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny()
    with serving({"tiny": model}) as server:
        calls = []

        def fail(*_: Any, **__: Any) -> Any:
            calls.append(1)
            if len(calls) > 1:  # taken before the failure was known
                until(lambda: not server.service.open, "the request is answered")
            raise RuntimeError("the model is broken")

        monkeypatch.setattr(model, "run", fail)
        limit = {"attention": True, "beam": 1}
        answer = server.post("/api/run", {"inputs": ["a cup of tea" * 40] * 30, **limit})
        assert answer.status_code == 500
        idle_again(server)
        assert len(calls) <= 2  # the rest is not decoded for nobody
