"""Hostile requests over all routes and sockets of a server, beside good ones: these are answered
right and in time, and at the end nothing is left of the others.

TRANSDUCE_FUZZ is the number of cases, TRANSDUCE_FUZZ_FIRST the first of them.
"""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client_server import catalogue, skip_without, write_wave
from served import until

skip_without("soundfile")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

FIRST = int(os.environ.get("TRANSDUCE_FUZZ_FIRST", "0"))
CASES = int(os.environ.get("TRANSDUCE_FUZZ", "10000"))
FEW = 60
AT_ONCE = 16
SECONDS = 5.0  # for a case; most clients leave sooner
BOUND = 90.0  # for a good answer, on a machine that is busy with other things as well
POOL = 2 + (os.cpu_count() or 1) + 4  # threads: the server, live speech, and asyncio's own
GROWTH = 64 << 20  # bytes of memory that may be new after the warm-up, whatever the number of cases


@contextmanager
def fuzzed_server(log: io.StringIO, processes: int) -> Iterator[tuple[Any, int]]:
    """processes: HTTP processes."""
    from transduce.serving.app import build_app
    from transduce.serving.engine import Engine
    from transduce.serving.limits import Limits
    from transduce.serving.processes.engine import EngineProcess
    from transduce.serving.server import Server, listen_together
    from transduce.serving.settings import ServiceSettings

    limits = Limits(
        characters=500,
        texts=30,
        length=100,
        beam=8,
        nbest=8,
        samples=8,
        queue_seconds=1e6,  # good ones are never turned away
        queue_tokens=10**9,
        seconds=60.0,
        idle_seconds=0.5,
        live_idle_seconds=0.5,
        results_seconds=0.5,
        audio_seconds=10.0,
    )
    settings = ServiceSettings(limits=limits, log=log)
    models = catalogue()
    for one in models.values():
        one.model.freeze()
    service = build_app(Engine(models, limits), settings)
    listening = listen_together("127.0.0.1", 0, processes)
    server, several = Server(service), EngineProcess(service, listening)
    run = several.run if processes > 1 else partial(server.run, listening)
    thread = threading.Thread(target=run, daemon=True)
    port = listening[0].getsockname()[1]
    thread.start()
    try:
        yield service, port
    finally:
        server.should_exit = True
        if processes > 1:
            several.stop()
        thread.join(timeout=100)
        assert not thread.is_alive(), "the server did not end"


class Good:
    """A client that asks for what it may, over and over, and compares the answers."""

    def __init__(self, port: int) -> None:
        self.port, self.answered, self.slowest = port, 0, 0.0
        self.expected: dict[str, Any] = {}

    async def ask(self, number: int) -> None:
        import httpx

        asked = [
            ("/api/run", {"model": "en-de", "input": "a cup of tea"}),
            ("/api/run", {"model": "de-en", "inputs": ["tea", "iroh"], "beam": 2}),
            ("/api/run", {"model": "en-de", "input": "tea", "sample": True, "seed": 3}),
            ("/translate", {"q": "iroh made tea", "source": "en", "target": "de"}),
            ("/v1/completions", {"model": "tea", "prompt": "tea", "temperature": 0}),
        ]
        path, body = asked[number % len(asked)]
        begin = time.monotonic()
        async with httpx.AsyncClient(trust_env=False, timeout=BOUND) as client:
            answer = await client.post(f"http://localhost:{self.port}{path}", json=body)
        self.slowest = max(self.slowest, time.monotonic() - begin)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        for name in ("id", "created"):
            found.pop(name, None)
        for one in found.get("outputs", ()):
            one["score"] = round(one["score"], 3)  # batches differ in the last bits
        assert self.expected.setdefault(f"{path} {body}", found) == found
        self.answered += 1


async def run_cases(numbers: range, wave: bytes, good: Good) -> Counter[str]:
    from server_fuzz import make_case, send_case

    kinds: Counter[str] = Counter()
    waiting = iter(numbers)

    async def attack() -> None:
        for number in waiting:
            case = make_case(number, wave)
            kinds[case.kind] += 1
            await send_case(case, good.port, SECONDS)

    done = asyncio.Event()

    async def behave() -> None:
        number = 0
        while not done.is_set():
            await good.ask(number)
            number += 1

    behaving = asyncio.create_task(behave())
    await asyncio.gather(*(attack() for _ in range(AT_ONCE)))
    done.set()
    await behaving
    return kinds


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def check(
    first: int, count: int, folder: Path, monkeypatch: Any, capfd: Any, processes: int = 1
) -> str:
    from server_fuzz import resident

    wave = write_wave(folder / "a.wav").read_bytes()
    (folder / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "temporary"))
    log, threads = io.StringIO(), threading.active_count()
    with fuzzed_server(log, processes) as (service, port):
        engine, good = service.engine, Good(port)
        warm = range(2_000_000, 2_000_000 + min(count, 1000) // 4)
        asyncio.run(run_cases(warm, wave, good))
        settle(service)
        gc.collect()
        before = (descriptors(), resident())
        begin = time.monotonic()
        kinds = asyncio.run(run_cases(range(first, first + count), wave, good))
        seconds = time.monotonic() - begin
        settle(service)
        gc.collect()
        maximum = engine._scheduler.max_threads + engine.threads.maximum + POOL
        assert threading.active_count() <= threads + maximum
        until(lambda: descriptors() <= before[0], "no descriptor is left")
        grown = resident() - before[1]
        assert grown < GROWTH, f"{grown / 1e6:.0f} MB more after {count:,} cases"
        assert engine._admission.queued == 0
        until(
            lambda: not [one for one in (folder / "temporary").rglob("*") if one.is_file()],
            "no file is left",
        )
        assert len(service.settings.folders) <= 1  # that of translated files
    until(lambda: threading.active_count() <= threads, "no thread is left")
    until(lambda: not list((folder / "temporary").iterdir()), "no folder is left")
    reported = capfd.readouterr().err
    others = [line for line in reported.splitlines() if line.startswith("{")]  # of HTTP processes
    lines = [json.loads(line) for line in [*log.getvalue().splitlines(), *others]]
    statuses = Counter(line["status"] for line in lines)
    wrong = [line for line in lines if line["status"] == 500]
    assert not wrong, wrong[:5]
    assert "Traceback" not in reported, reported[-5000:]
    assert "Exception" not in reported, reported[-5000:]
    assert "HTTP process" not in reported, reported[-5000:]
    return (
        f"{count:,} cases ({dict(kinds)}) in {seconds:.0f} s, {good.answered:,} good answers, the "
        f"slowest in {good.slowest:.2f} s; statuses {dict(sorted(statuses.items()))}; "
        f"{grown / 1e6:.1f} MB more"
    )


def settle(service: Any) -> None:
    """Until nothing of any request is left."""
    engine = service.engine
    until(lambda: not service.open and not service.sockets, "all requests are over")
    until(lambda: not engine._scheduler._batches and not engine._open, "nothing is decoded")
    until(lambda: not engine.live.streams and not engine.live._opening, "no session is open")
    assert engine._scheduler._waiting == []
    assert engine._admission.queued == 0
    assert (service.in_memory, service.on_disk) == (0, 0)


def test_some_hostile_requests(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    """Others than the many: those are sent before a release, these each time."""
    check(1_000_000, FEW, tmp_path, monkeypatch, capfd)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("processes", [1, 2])
def test_many_hostile_requests(
    processes: int, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    reported = check(FIRST, CASES, tmp_path, monkeypatch, capfd, processes)
    with capfd.disabled():
        print(reported)
