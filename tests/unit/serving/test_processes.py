"""Several HTTP processes before one engine: the same answers, limits over all of them, and none
that harms others by its end."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from client_server import english_german, tea_model
from forked import Forked
from served import Held, Running, serving, until
from transduce.errors import TransduceError
from transduce.serving.app import build_app
from transduce.serving.auth import Keys
from transduce.serving.engine import Engine
from transduce.serving.limits import Limits
from transduce.serving.models import Catalogue, Served
from transduce.serving.processes import engine
from transduce.serving.processes.channel import HELLO, RUN, Channel
from transduce.serving.processes.engine import EngineProcess, Peer, fitting_processes
from transduce.serving.processes.http import hello_of
from transduce.serving.server import listen_together
from transduce.serving.settings import ServiceSettings
from transduce.tasks.model import Model

HELD = {"model": "held", "input": "tea", "exclude": ["x"]}  # not by the search in C
OPEN = 24  # requests at the same time: that all go to one of two processes is then unlikely
KEY = {"Authorization": "Bearer tea"}
SETTINGS = ServiceSettings(
    keys=Keys(["tea"]),
    limits=Limits(connections=OPEN, texts=5, characters=50, body_bytes=100_000),
    accept_seconds=0.1,
)
MODELS: dict[str, Model] = {"en-de": english_german(), "tea": tea_model()}


MODELS["held"] = english_german()
HOLDING = Held(MODELS["held"])


@pytest.fixture
def held() -> Held:
    """Steps of the model `held` wait until they may go on."""
    HOLDING.free.clear()  # the end of a server frees it
    return HOLDING


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch, serving(MODELS, SETTINGS, 2) as running:
        for name, value in (("PING_SECONDS", 0.1), ("PAUSE", 0.1)):
            patch.setattr(engine, name, value)
        for name in ("MAX_UNANSWERED", "MAX_UNANSWERED_START"):  # the machine may be busy
            patch.setattr(engine, name, 1000)
        running.client.headers.update(KEY)
        assert running.client.get("/health").status_code == 200
        until(lambda: all(peer.ready for peer in peers(running)), "both processes serve")
        yield running
        idle_again(running)


def peers(server: Running) -> list[Peer]:
    assert server.process is not None
    return sorted(server.process.peers, key=lambda peer: peer.place)


def until_replaced(server: Running, dead: Peer) -> None:
    def is_replaced() -> bool:
        now = peers(server)
        return dead not in now and len(now) == 2 and all(one.ready for one in now)

    until(is_replaced, "another process has taken its place")


def idle_again(server: Running) -> None:
    """Nothing is left of any request."""
    engine, service = server.engine, server.service
    until(lambda: not service.open and not engine._open, "all requests are over")
    until(lambda: not engine._scheduler._batches, "nothing is decoded")
    assert (engine._admission.queued, service.in_memory) == (0, 0)
    assert not any(peer.calls for peer in peers(server))


class Connection:
    """A connection with a request whose answer is not read yet."""

    def __init__(self, server: Running, **request: Any) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        body = json.dumps(request).encode()
        head = "POST /api/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer tea\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def status(self) -> int:
        """Of the answer; 0: the connection has ended without one."""
        try:
            found = self.socket.recv(65536)
        except ConnectionError:
            return 0
        return int(found.split()[1]) if found else 0


def on_both(server: Running, **request: Any) -> list[Connection]:
    """Requests until each process has one; the kernel decides which connection goes where."""
    found: list[Connection] = []
    while not all(peer.calls for peer in peers(server)):
        found.append(Connection(server, **request))
        until(lambda: len(server.service.open) == len(found), "the request is open")
        assert len(found) < OPEN, "all connections are with one process"
    return found


def test_a_message_that_cannot_be_sent_harms_no_other() -> None:
    async def talk() -> list[Any]:
        found: list[Any] = []
        ended = asyncio.Event()
        own, other = Channel(found.append, ended.set), Channel(found.append, ended.set)
        for channel, end in zip((own, other), socket.socketpair(), strict=True):
            await channel.connect(end)
        for number in range(300):
            own.send(RUN, number, "é" * number, b"\x00")
            with pytest.raises(UnicodeEncodeError):
                own.send(RUN, number, "\ud800")
        own.close()
        await ended.wait()
        return found

    assert asyncio.run(talk()) == [[RUN, n, "é" * n, b"\x00"] for n in range(300)]


FILE = {"file": ("a.txt", b"tea\niroh\n", "text/plain")}
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/api/run", {"json": {"input": "a cup of tea"}}),
    ("POST", "/api/run", {"json": {"inputs": ["tea", "iroh"], "beam": 2, "nbest": 2}}),
    ("POST", "/api/run", {"json": {"model": "tea", "input": "tea", "max_length": 5}}),
    ("POST", "/api/run", {"json": {"input": "tea", "attention": True, "prefix": "t"}}),
    ("POST", "/api/run", {"json": {"input": "tea", "stream": True, "alternatives": 2}}),
    ("POST", "/api/run", {"json": {"input": "tea", "beam": 0}}),
    ("POST", "/api/run", {"json": {"input": "tea", "beem": 1}}),
    ("POST", "/api/run", {"json": {"input": "a" * 51}}),
    ("POST", "/api/run", {"json": {"inputs": []}}),
    ("POST", "/api/run", {"json": {"model": "none", "input": "tea"}}),
    ("POST", "/api/run", {"content": b"[" * 3000}),
    ("POST", "/api/run", {"content": b" " * 100_001}),
    ("POST", "/api/run", {"json": {"input": "tea"}, "headers": {"Authorization": "Bearer x"}}),
    ("POST", "/api/run", {"json": {"input": "tea"}, "headers": {"Host": "evil.example"}}),
    ("POST", "/api/run", {"json": {"input": "tea"}, "headers": {"Origin": "http://evil"}}),
    ("POST", "/api/classify", {"json": {"input": "tea"}}),
    ("POST", "/api/align", {"json": {"inputs": ["tea"], "targets": ["tea"]}}),
    ("POST", "/v2/translate", {"json": {"text": ["tea"], "target_lang": "DE"}}),
    ("POST", "/translate", {"json": {"q": "tea", "source": "en", "target": "de"}}),
    ("POST", "/translate_file", {"data": {"source": "en", "target": "de"}, "files": FILE}),
    ("GET", "/api/models", {}),
    ("GET", "/openapi.json", {}),
    ("GET", "/", {}),
    ("HEAD", "/", {}),
    ("GET", "/ready", {}),
    ("GET", "/nothing", {}),
    ("GET", "/api/run", {}),
]


def shown(answer: httpx.Response) -> tuple[int, Any, dict[str, str]]:
    """An answer without what is of one request or one server: numbers, times, ports."""
    headers = dict(answer.headers)
    known = headers.pop("x-request-id")
    for name in ("date", "content-length"):
        headers.pop(name, None)
    text = answer.text.replace(known, "")
    if "translatedFileUrl" in text:
        text = "the address of a file"
    return answer.status_code, text, headers


def test_answers_are_those_of_one_process(server: Running) -> None:
    with serving({name: MODELS[name] for name in MODELS}, SETTINGS) as alone:
        alone.client.headers.update(KEY)
        for method, path, more in ASKED:
            expected = shown(alone.client.request(method, path, **more))
            with httpx.Client(base_url=server.url, headers=KEY, trust_env=False) as client:
                assert shown(client.request(method, path, **more)) == expected, path
    text = server.client.get("/metrics").text
    assert 'transduce:http_responses_total{method="POST",status="403"} 2.0' in text


def test_requests_that_are_open_are_counted_over_all_processes(server: Running, held: Held) -> None:
    waiting = on_both(server, **HELD)
    while len(waiting) < OPEN:
        waiting.append(Connection(server, **HELD))
    until(lambda: len(server.service.open) == OPEN, "as many as may be are open")
    for _ in range(4):  # by whichever process
        assert Connection(server, input="tea").status() == 429
    held.free.set()
    assert [one.status() for one in waiting] == [200] * OPEN
    idle_again(server)


def test_a_stream_comes_token_by_token(server: Running, held: Held) -> None:
    request = {**HELD, "stream": True}
    with server.client.stream("POST", "/api/run", json=request) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("event"))
        held.step()
        assert next(lines) == "event: token"
        assert server.engine.running == 1  # the rest is still to come
        held.free.set()
        assert [*lines][-1] == "event: output"


def test_what_a_client_asked_for_is_dropped_when_it_leaves(server: Running, held: Held) -> None:
    waiting = on_both(server, **HELD)
    waiting.append(Connection(server, **HELD, stream=True))
    until(lambda: len(server.engine._open) == len(waiting), "all are in the queue")
    for one in waiting:
        one.socket.close()
    until(lambda: not server.service.open and not server.engine._open, "they are dropped")
    held.free.set()
    idle_again(server)


def test_a_process_that_dies_is_replaced(
    server: Running, held: Held, capfd: pytest.CaptureFixture[str]
) -> None:
    waiting = on_both(server, **HELD)
    dead, other = peers(server)
    lost, kept = len(dead.calls), len(other.calls)
    os.kill(dead.process.pid, signal.SIGKILL)
    until(lambda: len(server.service.open) == kept, "the requests of the dead one are dropped")
    held.free.set()
    statuses = [one.status() for one in waiting]
    assert (statuses.count(0), statuses.count(200)) == (lost, kept)
    until_replaced(server, dead)
    assert "an HTTP process has ended (signal 9)" in capfd.readouterr().err
    assert server.run(input="tea")
    held.free.clear()
    for one in on_both(server, **HELD):  # the new one has its share
        one.socket.close()
    held.free.set()


def test_a_replacement_that_does_not_come_up_is_tried_again(
    server: Running, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    dead, other = peers(server)
    start = subprocess.Popen
    tried: list[str] = []

    def starting(*given: Any, **more: Any) -> Any:
        tried.append("")
        if len(tried) == 1:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        process = start(*given, **more)
        if len(tried) == 2:  # before it serves
            process.kill()
        return process

    monkeypatch.setattr(subprocess, "Popen", starting)
    os.kill(dead.process.pid, signal.SIGKILL)
    until(lambda: len(tried) == 3, "it is tried again")
    until_replaced(server, dead)
    assert other in peers(server)
    assert server.run(input="tea")
    said = capfd.readouterr().err
    assert "no HTTP process could be started (Resource temporarily unavailable)" in said


def test_a_server_without_http_processes_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    service = build_app(Engine(Catalogue([Served.of("en-de", MODELS["en-de"])])))
    server = EngineProcess(service, listen_together("127.0.0.1", 0, 2))
    monkeypatch.setattr(subprocess, "Popen", refused)
    with pytest.raises(TransduceError, match="could not be started"):
        server.run()


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGSTOP")
def test_a_process_that_hangs_is_replaced(
    server: Running, capfd: pytest.CaptureFixture[str]
) -> None:
    hung, other = peers(server)
    os.kill(hung.process.pid, signal.SIGSTOP)
    until(lambda: hung.unanswered > 3 > other.unanswered, "one of them does not answer")
    hung.unanswered = engine.MAX_UNANSWERED
    until_replaced(server, hung)
    assert "an HTTP process has not answered" in capfd.readouterr().err


def is_refused(server: Running) -> bool:
    try:
        httpx.get(f"{server.url}/health", trust_env=False, timeout=20)
    except httpx.ConnectError:
        return True
    return False


def test_sigterm_finishes_what_is_open(held: Held) -> None:
    with serving(MODELS, SETTINGS, processes=2) as server:
        until(lambda: len(peers(server)) == 2 and all(p.ready for p in peers(server)), "ready")
        waiting = on_both(server, **HELD)
        children = [peer.process for peer in peers(server)]
        server.stop()
        assert server.client.get("/ready", headers=KEY).status_code == 503
        until(lambda: is_refused(server), "nobody listens any more")
        held.free.set()
        assert [one.status() for one in waiting] == [200] * len(waiting)
        assert [one.wait(20) for one in children] == [0, 0]


@pytest.mark.parametrize("processes", [1, 2])
def test_the_third_signal_answers_what_is_open(
    held: Held, processes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(MODELS, SETTINGS, processes) as server:
        assert server.client.get("/health").status_code == 200
        waiting = [Connection(server, **HELD), Connection(server, **HELD, max_length=5)]
        until(lambda: len(server.service.open) == 2, "both are open")
        for _ in range(3):
            server.stop()
        for one in waiting:
            one.socket.settimeout(20)  # not at the end of drain_seconds
        assert [one.status() for one in waiting] == [503, 503]
    assert "Traceback" not in capfd.readouterr().err


def test_a_process_ends_with_that_of_the_engine() -> None:
    own, other = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        given = (other.fileno(), listening.fileno())
        command = [sys.executable, "-m", "transduce.serving.processes.http", *map(str, given)]
        process = subprocess.Popen(command, pass_fds=given, stderr=subprocess.PIPE, text=True)
        other.close()
        hello = msgspec.msgpack.encode([[HELLO, hello_of(ServiceSettings(), {}, speaks=True)]])
        own.sendall(len(hello).to_bytes(4, "little") + hello)
        assert own.recv(100)  # it serves
        own.close()
        assert "the engine's process has ended" in process.communicate(timeout=60)[1]
        assert process.returncode == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_process_is_left_of_a_server_that_was_killed(tmp_path: Path) -> None:
    MODELS["en-de"].save(tmp_path / "model")
    options = ["--port", "0", "--no-log", "--device", "cpu", "--http-processes", "2"]
    command = [sys.executable, "-m", "transduce", "serve", str(tmp_path / "model"), *options]
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        assert httpx.get(f"{url}/health", trust_env=False, timeout=60).status_code == 200
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        children = [Path("/proc", child) for child in listed.split()]
        assert len(children) == 2
    finally:
        process.kill()
    until(lambda: not any(map(_is_alive, children)), "no process is left")
    process.wait(60)


def _is_alive(process: Path) -> bool:
    try:
        return process.joinpath("stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_how_many_processes_there_are_without_being_told(monkeypatch: Any) -> None:
    def fitting(device: str, cores: int) -> int:
        monkeypatch.setattr(engine, "count_cores", lambda: cores)
        monkeypatch.setattr(engine, "pick_device", lambda name: type("", (), {"type": name}))
        return fitting_processes(device)

    assert fitting("cpu", 64) == 1
    assert [fitting("cuda", cores) for cores in (2, 7, 8, 16, 128)] == [1, 1, 2, 4, 4]
