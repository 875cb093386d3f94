"""What clients send, right and wrong: limits, keys, CORS, errors, uploads; and SIGTERM."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from forked import Forked
from served import Running, serving, until
from tiny_models import tiny
from transduce.errors import DataError, ModelError
from transduce.serving.app import build_app
from transduce.serving.auth import Keys
from transduce.serving.engine import Engine
from transduce.serving.limits import Limits
from transduce.serving.models import Catalogue, Served, parse_spec
from transduce.serving.protocols.answers import EventStream, closing
from transduce.serving.server import (
    Server,
    listen,
    make_no_connections,
    open_many_files,
    unprotected,
)
from transduce.serving.settings import ServiceSettings
from transduce.tasks.transduce import load

FIXTURES = Path(__file__).parents[2] / "fixtures" / "models"
LIMITS = Limits(texts=5, characters=50, body_bytes=2000, upload_bytes=10_000)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving({"tiny": tiny()}, ServiceSettings(limits=LIMITS)) as running:
        yield running


def message(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["request_id"] == answer.headers["x-request-id"]
    text: str = error["message"]
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is not JSON"),
        (b'{"input": "te', "the body is not JSON"),
        (b"\xff\xfe", "the body is not JSON"),
        (b"[1]", "the body must be a JSON object, not a list"),
        (b"{}", "give either input, a text, or inputs, a list of texts"),
        (b'{"input": "a", "inputs": ["a"]}', "give either input"),
        (b'{"input": 3}', "input must be text or null, not a whole number"),
        (b'{"inputs": ["a", 3]}', "inputs[1] must be text, not a whole number"),
        (b'{"input": "a", "beem": 3}', "there is no field beem; there are model, input"),
        (b'{"input": "a", "beam": "3"}', "beam must be a whole number or null, not text"),
        (b'{"input": "a", "beam": 0}', "beam is 0; it must be 1 or more"),
        (b'{"input": "a", "sample": 1}', "sample must be true or false, not a whole number"),
        (b'{"input": "a", "top_k": 3}', "set sample as well"),
        (b'{"inputs": ["a", "b"], "prefix": ["a"]}', "prefix has 1 entries"),
        (b'{"inputs": ["a", "b"], "stream": true}', "a stream has one input, not 2"),
        (b'{"input": "a", "stream": true, "beam": 3}', "a stream has a single hypothesis"),
        (b'{"input": "a", "stream": true, "alternatives": -1}', "alternatives is -1"),
        (b'{"input": "a", "ensemble": ["x"]}', "ensemble: there is no model x; there are tiny"),
        (b'{"input": "a", "times": true}', "times is for speech models; leave it out"),
        (b'{"input": "' + b"[" * 500 + b'"}', ""),
        (b"[" * 1000, "the body"),
    ],
)
def test_a_wrong_body_is_answered_with_one_sentence(
    server: Running, body: bytes, said: str
) -> None:
    status = 413 if b"[[[" in body and body.startswith(b"{") else 400
    assert said in message(server.client.post("/api/run", content=body), status)


def test_an_unknown_model_is_answered_with_the_names(server: Running) -> None:
    answer = server.post("/api/run", {"model": "large", "input": "tea"})
    assert message(answer, 404) == "there is no model 'large'; there are tiny"
    assert "nothing at this address" in message(server.client.get("/api/walk"), 404)
    assert message(server.client.get("/api/run"), 405)


def test_what_is_too_large_is_refused(server: Running) -> None:
    assert "the maximum is 5" in message(server.post("/api/run", {"inputs": ["a"] * 6}), 413)
    assert "the maximum is 50" in message(server.post("/api/run", {"input": "a" * 51}), 413)
    long = server.post("/api/run", {"input": "a", "prefix": "a" * 51})
    assert "the maximum is 50" in message(long, 413)
    large = server.client.post("/api/run", content=b" " * 2001)
    assert "2,001 bytes; the maximum is 2,000" in message(large, 413)

    def endless() -> Iterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    try:  # without a length: counted as it comes
        answer = server.client.post("/api/run", content=endless())
    except httpx.HTTPError:
        return  # the server has answered and closed while the body was still being sent
    assert "larger than 2,000 bytes" in message(answer, 413)


@pytest.mark.skipif(sys.platform != "linux", reason="others tell no limit that they keep")
def test_a_server_may_have_as_many_connections_as_the_system_allows() -> None:
    import resource

    soft, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))
        open_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_slow_client_is_not_waited_for() -> None:
    settings = ServiceSettings(limits=Limits(idle_seconds=0.5))
    with serving({"tiny": tiny()}, settings) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as silent:
            silent.settimeout(60)
            silent.sendall(b"POST /api/run HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 10\r\n\r\n{")
            assert b" 408 " in silent.recv(4096).splitlines()[0]
        with socket.create_connection((host, int(port))) as silent:
            silent.settimeout(60)
            silent.sendall(b"POST /api/run HTT")  # the head is never complete
            assert silent.recv(4096) == b""
        assert server.client.get("/health").status_code == 200


def test_health_readiness_models_and_metrics(server: Running) -> None:
    server.run(input="tea")
    assert server.client.get("/health").json()["status"] == "ok"
    assert server.client.get("/ready").json()["status"] == "ready"
    (model,) = server.client.get("/api/models").json()["models"]
    assert (model["name"], model["task"], model["input"]) == ("tiny", "transduce", "text")
    text = server.client.get("/metrics").text
    for name in (
        "vllm:num_requests_running 0.0",
        "vllm:num_requests_waiting 0.0",
        'vllm:request_queue_time_seconds_count{model_name="tiny"}',
        'vllm:e2e_request_latency_seconds_bucket{le="0.1",model_name="tiny"}',
        'vllm:prompt_tokens_total{model_name="tiny"}',
        'vllm:generation_tokens_total{model_name="tiny"}',
        'vllm:request_success_total{finished_reason="stop",model_name="tiny"}',
    ):
        assert name in text


def test_targets_are_aligned(server: Running) -> None:
    request = {"inputs": ["a cup of tea"], "targets": ["tea"]}
    (found,) = server.post("/api/align", request).json()["outputs"]
    (own,) = tiny().score(["a cup of tea"], ["tea"], attention=True)
    assert found["tokens"] == own.tokens
    assert found["log_probability"] == pytest.approx(own.log_probability, abs=1e-3)
    assert own.attention is not None
    best = own.attention.mean(axis=(0, 1))[:-1, :-1].argmax(axis=1).tolist()
    assert found["alignment"] == [[place, target] for target, place in enumerate(best)]
    wrong = server.post("/api/align", {"inputs": ["a"], "targets": []})
    assert message(wrong, 400) == "there are 1 inputs, but 0 targets"
    assert message(server.post("/api/align", {"inputs": ["a"]}), 400).endswith("is missing")


def test_keys_are_asked_for_and_never_logged() -> None:
    log = io.StringIO()
    settings = ServiceSettings(keys=Keys(["first-key", "second-key"]), log=log)
    with serving({"tiny": tiny()}, settings) as server:
        body = {"input": "tea"}
        for headers in (
            {},
            {"Authorization": "Bearer wrong-key"},
            {"Authorization": "Bearer"},
            {"Authorization": "Basic first-key"},
        ):
            answer = server.post("/api/run", body, headers=headers)
            assert message(answer, 403) == "the API key is missing or unknown"
        assert server.post("/api/run?api_key=wrong-key", body).status_code == 403
        for scheme in ("Bearer", "DeepL-Auth-Key"):
            allowed = server.post(
                "/api/run", body, headers={"Authorization": f"{scheme} first-key"}
            )
            assert allowed.status_code == 200
        assert server.post("/api/run?api_key=second-key", body).status_code == 200
        assert server.client.get("/api/models").status_code == 403
        assert server.client.get("/health").status_code == 200
    assert "-key" not in log.getvalue()
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["status"] for line in lines] == [403] * 5 + [200] * 3 + [403, 200]
    assert lines[-4]["model"] == "tiny"
    assert len({line["request_id"] for line in lines}) == len(lines)


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the office\nalpha \n\nbeta\n")
    keys = Keys.read(file)
    assert [keys.allow(key) for key in ("alpha", "beta", "# of the office", "", None)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    file.write_text("# none\n")
    with pytest.raises(DataError, match="has no API key"):
        Keys.read(file)
    with pytest.raises(DataError, match="cannot be read"):
        Keys.read(tmp_path / "missing")


def test_other_origins_are_allowed_only_on_request(server: Running) -> None:
    headers = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    plain = server.post("/api/run", {"input": "tea"}, headers=headers)
    assert "access-control-allow-origin" not in plain.headers
    assert server.client.options("/api/run", headers=headers).status_code == 405
    settings = ServiceSettings(cors=("https://page.example",))
    with serving({"tiny": tiny()}, settings) as open_server:
        preflight = open_server.client.options("/api/run", headers=headers)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == "https://page.example"
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        # As OpenAI's JavaScript client asks for its own headers.
        own = "authorization,content-type,x-stainless-arch,x-stainless-retry-count"
        asked = {**headers, "Access-Control-Request-Headers": own}
        preflight = open_server.client.options("/v1/chat/completions", headers=asked)
        assert preflight.headers["access-control-allow-headers"] == own
        asked["Access-Control-Request-Headers"] = "a: b"
        preflight = open_server.client.options("/v1/chat/completions", headers=asked)
        assert preflight.headers["access-control-allow-headers"] == "authorization, content-type"
        allowed = open_server.post("/api/run", {"input": "tea"}, headers=headers)
        assert allowed.status_code == 200
        other = open_server.post("/api/run", {"input": "tea"}, headers={"Origin": "https://b.c"})
        assert "pages of https://b.c may not use this server" in message(other, 403)
        assert "access-control-allow-origin" not in other.headers


def test_audio_is_uploaded_and_no_file_of_the_server_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile", reason="needs the extra speech")
    import numpy as np

    wave = (0.1 * np.sin(np.arange(16000) / 10)).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", wave, 16000)
    sound = (tmp_path / "a.wav").read_bytes()
    model = load(FIXTURES / "speech")
    (own,) = model.run([tmp_path / "a.wav"])
    uploads = tmp_path / "uploads"
    uploads.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(uploads))  # other tests write into the usual one
    with serving({"speech": model, "tiny": tiny()}) as server:
        answer = server.client.post("/api/run", files={"file": ("../../a.wav", sound)})
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["text"] == own.text
        noise = server.client.post("/api/run", files={"file": ("b.wav", b"not audio")})
        assert "b.wav" in message(noise, 400)
        assert str(tmp_path) not in noise.text
        named = server.post("/api/run", {"input": str(tmp_path / "a.wav")})
        assert "takes audio, not str" in message(named, 400)
        text = server.client.post(
            "/api/run", files={"file": ("a.wav", sound)}, data={"request": '{"model": "tiny"}'}
        )
        assert "takes text, not files" in message(text, 400)
        cut = server.client.post(
            "/api/run",
            content=b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nabc',
            headers={"Content-Type": "multipart/form-data; boundary=x"},
        )
        assert "incomplete" in message(cut, 400)
    assert list(uploads.iterdir()) == []


def test_models_are_found_by_name_and_language_pair() -> None:
    models = {"en-de": tiny(), "other": tiny()}
    catalogue = Catalogue(
        [
            Served.of("en-de", models["en-de"], ("en", "de")),
            Served.of("other", models["other"], ("en", "pt_BR")),
        ]
    )
    assert catalogue.for_pair("en", "de") is catalogue["en-de"]
    assert catalogue.for_pair("EN", "PT-BR") is catalogue["other"]
    assert catalogue.for_pair("en", "pt") is catalogue["other"]
    assert catalogue.for_pair("de", "en") is None
    assert catalogue.pairs() == [("en", "de"), ("en", "pt_BR")]
    assert parse_spec("en-de=runs/a") == ("en-de", Path("runs/a"), ("en", "de"))
    assert parse_spec("best=runs/a") == ("best", Path("runs/a"), None)
    assert parse_spec("runs/a")[0] == "a"
    with pytest.raises(ModelError, match="two models are called"):
        Catalogue([Served.of("a", models["other"]), Served.of("a", models["other"])])


def test_the_recipe_says_the_languages() -> None:
    data = {
        "train": {"name": "copy", "split": "train"},
        "valid": {"name": "copy", "split": "valid"},
        "tokens": {"both": {"level": "character"}},
    }
    languages = {"source": "en", "target": "pt-BR"}
    assert Served.of("x", tiny(data={**data, "languages": languages})).pair == ("en", "pt-BR")
    named = {"name": "multi30k", "pair": "en-de", "split": "train"}
    assert Served.of("x", tiny(data={**data, "train": named})).pair == ("en", "de")
    files = {"source": "train.en", "target": "train.de"}
    assert Served.of("x", tiny(data={**data, "train": files})).pair == ("en", "de")
    files = {"source": "source.txt", "target": "target.txt"}
    assert Served.of("x", tiny(data={**data, "train": files})).pair is None
    assert Served.of("x", tiny(), ("fr", "it")).pair == ("fr", "it")


def test_a_server_without_keys_warns_where_others_can_reach_it() -> None:
    assert "needs no API key" in unprotected("0.0.0.0", ServiceSettings())
    assert (
        unprotected("127.0.0.1", ServiceSettings()) == unprotected("::1", ServiceSettings()) == ""
    )
    assert unprotected("0.0.0.0", ServiceSettings(keys=Keys(["a"]))) == ""


def test_a_port_in_use_is_one_sentence() -> None:
    taken = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with taken, pytest.raises(DataError, match=f"cannot listen on 127.0.0.1, port {port}"):
        listen("127.0.0.1", port)


def test_connections_that_nobody_has_accepted_are_served_at_the_end() -> None:
    """They are in the kernel's queue when the server stops listening, with their requests."""
    engine = Engine(Catalogue([Served.of("m", tiny().freeze())]), Limits())
    listening = listen("127.0.0.1", 0)
    address = listening.getsockname()
    server = Server(build_app(engine, ServiceSettings()))

    async def stop_with_a_queue() -> list[bytes]:
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([listening])
        body = json.dumps({"input": "a cup of tea"}).encode()
        head = b"POST /api/run HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(
            body
        )
        clients = [socket.create_connection(address) for _ in range(5)]
        for client in clients:
            client.sendall(head + body)
            client.settimeout(30)
        await server.shutdown([listening])  # not once has the loop looked at the socket
        answers = [client.recv(1 << 16) for client in clients]
        for client in clients:
            client.close()
        return answers

    answers = asyncio.run(stop_with_a_queue())
    assert [answer[:15] for answer in answers] == [b"HTTP/1.1 200 OK"] * 5
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can be asked for it")
def test_between_the_last_connection_and_the_end_of_listening_nobody_is_let_in() -> None:
    with listen("127.0.0.1", 0) as listening:
        address = listening.getsockname()
        with socket.create_connection(address, timeout=20) as early:
            make_no_connections(listening)
            with pytest.raises(TimeoutError):  # and not a connection that is reset later
                socket.create_connection(address, timeout=0.1)
            accepted = listening.accept()[0]
            with accepted:
                early.sendall(b"ask")
                assert accepted.recv(3) == b"ask"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_sigterm_drains_and_loses_no_request(tmp_path: Path) -> None:
    tiny().save(tmp_path / "model")
    command = [sys.executable, "-m", "transduce", "serve", f"en-de={tmp_path / 'model'}"]
    process = Forked(
        [*command, "--port", "0", "--accept-seconds", "100", "--drain-seconds", "200", "--no-log"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("serving en-de at http://127.0.0.1:"), process.stderr
        url = first.split()[-1]
        answered, refused = [0] * 4, [False] * 4
        failures: list[Any] = []

        def ask(own: int) -> None:
            with httpx.Client(base_url=url, timeout=200, trust_env=False) as client:
                while True:
                    try:
                        answer = client.post("/api/run", json={"input": "a cup of tea"})
                    except httpx.ConnectError:  # it no longer listens: not sent, so not lost
                        refused[own] = True
                        return
                    except httpx.HTTPError as error:
                        failures.append(error)
                        return
                    if answer.status_code != 200:
                        failures.append(answer.text)
                    answered[own] += 1

        clients = [threading.Thread(target=ask, args=(own,)) for own in range(4)]
        for client in clients:
            client.start()
        until(lambda: min(answered) >= 2, "all clients are answered")
        process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 60
        while (ready := httpx.get(f"{url}/ready", trust_env=False, timeout=200)).is_success:
            assert time.monotonic() < end
        assert ready.status_code == 503
        assert ready.headers["connection"] == "close"
        # From here on, nobody waits with a connection that the server may close: each answer but
        # the one that was under way ends its connection.
        before = list(answered)
        until(
            lambda: all(a + 2 <= b for a, b in zip(before, answered, strict=True)),
            "requests are answered while the server drains",
        )
        process.send_signal(signal.SIGTERM)  # no more waiting for those who have not noticed
        assert process.wait(timeout=200) == 0
        for client in clients:
            client.join(timeout=200)
        assert failures == []
        assert all(refused)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/nowhere", {}, 404),
        ("/api/run", {}, 404),
        ("/api/live", {"Origin": "https://a.b"}, 403),
        ("/api/live", {"Host": "elsewhere"}, 400),
    ],
)
def test_a_websocket_that_is_refused_has_a_status_in_the_log(
    path: str, headers: dict[str, str], status: int
) -> None:
    log = io.StringIO()
    with serving({"tiny": tiny()}, ServiceSettings(log=log)) as logged:
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        upgrade |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", **headers}
        answer = logged.client.get(path, headers=upgrade)
        assert answer.status_code == status
        assert answer.json()["error"]["message"]
        until(lambda: "\n" in log.getvalue(), "it is in the log")
    line = json.loads(log.getvalue().splitlines()[0])
    assert (line["path"], line["status"]) == (path, status)


def test_an_idle_connection_is_kept_as_long_as_the_limit_says(server: Running) -> None:
    service = server.service
    assert Server(service).config.timeout_keep_alive == service.settings.limits.keep_alive_seconds


def test_a_stream_is_closed_for_a_client_that_left_before_it_began() -> None:
    closed = []

    async def events() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1"
            yield b"data: 2"
        finally:
            closed.append(True)

    async def gone(message: Any = None) -> Any:
        raise OSError

    async def use() -> None:
        stream = await EventStream.of(events(), lambda failure: b"")
        with pytest.raises((OSError, ClientDisconnect)):
            await stream({"type": "http", "asgi": {"spec_version": "2.4"}}, gone, gone)
        assert closed

    asyncio.run(use())


def test_a_stream_that_nobody_has_asked_for_an_event_leaves_nothing(server: Running) -> None:
    async def use() -> None:
        engine = Engine(server.engine.catalogue)
        steps = engine.stream(engine.catalogue["tiny"], "tea")
        assert len(engine._open) == 1
        async with closing(steps):
            pass
        assert not engine._open
        await asyncio.to_thread(engine.stop)
        assert engine._admission.queued == 0

    asyncio.run(use())
