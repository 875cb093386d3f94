"""Parts of the server that are its own, beside those of its frameworks:

    python benchmarks/serving_parts.py MODEL [--quick] [--json OUT]

Time on one core for each request, in microseconds: the lookup of a route, a JSON response, the
counters of a request that is done, and deadlines that are taken back. Beside them whole requests
of the application, without decoding and without the HTTP server: /health, and /api/run as it is
answered in a server of one process and in the engine's process, behind HTTP processes. Rounds take
turns; given are the median and the range over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
import uvloop
from prometheus_client import CollectorRegistry, Counter, Histogram
from starlette.responses import JSONResponse, Response
from starlette.routing import Router
from systems import metadata

import transduce
from transduce.decoding.output import Output
from transduce.serving.app import build_app
from transduce.serving.engine import Engine
from transduce.serving.exchange import WHEN_LEFT
from transduce.serving.jobs import Job
from transduce.serving.metrics import SECONDS, Family
from transduce.serving.models import Catalogue, Served
from transduce.serving.processes.channel import RUN, Channel
from transduce.serving.processes.engine import Peer
from transduce.serving.protocols.answers import json_response, to_json

VALUE = {"model": "model", "outputs": [{"text": "eine Tasse Tee", "score": -1.25, "tokens": []}]}
PATHS = ("/api/run", "/translate", "/v1/chat/completions", "/v2/translate")
Part = Callable[[int], Awaitable[None]]


async def nothing(message: Any = None) -> None:
    """The client's side."""


def scope_of(path: str, method: str = "POST") -> dict[str, Any]:
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    return {
        "type": "http",
        "method": method,
        "path": path,
        "headers": headers,
        "query_string": b"",
        "root_path": "",
    }


def routes(engine: Engine) -> dict[str, Part]:
    """Finding the endpoint of a path; the endpoints of both do nothing else."""
    service = build_app(engine)
    exact = dict.fromkeys(service._exact, nothing)

    async def own(count: int) -> None:
        for number in range(count):
            scope = scope_of(PATHS[number % len(PATHS)])
            await exact[scope["method"], scope["path"]]()

    found = Router(
        [type(one)(one.path, nothing_at_all) for one in service.router.routes],  # type: ignore[attr-defined]
        redirect_slashes=False,
    )

    async def framework(count: int) -> None:
        for number in range(count):
            scope = scope_of(PATHS[number % len(PATHS)])
            scope["method"] = "GET"
            await found(scope, nothing, nothing)  # type: ignore[arg-type]

    return {"routing, own": own, "routing, Starlette": framework}


class nothing_at_all:  # Starlette takes a class for an ASGI application
    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        pass

    def __await__(self) -> Any:
        return iter(())


def responses() -> dict[str, Part]:
    def sent(make: Callable[[], Response]) -> Part:
        async def part(count: int) -> None:
            scope = scope_of("/api/run")
            for _ in range(count):
                await make()(scope, nothing, nothing)  # type: ignore[arg-type]

        return part

    return {
        "JSON response, msgspec": sent(lambda: json_response(VALUE)),
        "JSON response, Starlette": sent(lambda: JSONResponse(VALUE)),
    }


def counters() -> dict[str, Part]:
    """Two histograms and four counters of a request, each with a label or two."""
    own_counts = [Family(f"count_{n}", "", ["model"]) for n in range(4)]
    own_times = [Family(f"time_{n}", "", ["model"], SECONDS) for n in range(2)]
    for family in own_counts:
        family.counts["model",] = 0

    async def own(count: int) -> None:
        for _ in range(count):
            for family in own_counts:
                family.counts["model",] += 1
            for family in own_times:
                family.histogram("model").observe(0.05)

    registry = CollectorRegistry()
    counts = [Counter(f"count_{n}", "", ["model"], registry=registry) for n in range(4)]
    times = [
        Histogram(f"time_{n}", "", ["model"], buckets=SECONDS, registry=registry) for n in range(2)
    ]

    async def framework(count: int) -> None:
        for _ in range(count):
            for counter in counts:
                counter.labels("model").inc()
            for histogram in times:
                histogram.labels("model").observe(0.05)

    return {"counters, own": own, "counters, prometheus_client": framework}


def deadlines() -> dict[str, Part]:
    """Two of a request: for its body, and for its answer."""

    async def timers(count: int) -> None:
        loop = asyncio.get_running_loop()
        for number in range(2 * count):
            loop.call_later(120.0, number.__index__).cancel()

    async def timeouts(count: int) -> None:
        for _ in range(2 * count):
            async with asyncio.timeout(120.0):
                pass

    return {"deadlines, timers of the loop": timers, "deadlines, asyncio.timeout": timeouts}


def whole(engine: Engine) -> dict[str, Part]:
    service = build_app(engine)

    async def part(count: int) -> None:
        for _ in range(count):
            await service(scope_of("/health", "GET"), nothing, nothing)  # type: ignore[arg-type]

    return {"a whole request, /health": part}


def runs(engine: Engine) -> dict[str, Part]:
    """Requests for outputs, which the scheduler has at once; 64 at a time, as of many clients."""
    service, text = build_app(engine), "A dog runs in the snow with other dogs."
    body = to_json({"input": text, "beam": 1})
    made = Output(
        "Ein Hund rennt im Schnee mit anderen Hunden.", -0.7, ["▁Hund"] * 10, ["▁dog"] * 9
    )

    def submit(job: Job) -> None:
        job.loop.call_soon(job.deliver, 0, made, time.monotonic())

    engine._scheduler.submit = submit  # type: ignore[method-assign]

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def alone(count: int) -> None:
        for _ in range(count // 64):
            scopes = [scope_of("/api/run") for _ in range(64)]
            for scope in scopes:
                scope["extensions"] = {WHEN_LEFT: set()}
            await asyncio.gather(*(service(scope, receive, nothing) for scope in scopes))  # type: ignore[arg-type]

    async def behind(count: int) -> None:
        own, other = socket.socketpair()
        peer = Peer(service, 0, None, lambda peer: None)  # type: ignore[arg-type]
        await peer.channel.connect(own)
        answers = asyncio.Queue[Any]()
        channel = Channel(answers.put_nowait, lambda: None)
        await channel.connect(other)
        for _ in range(count // 64):
            for number in range(64):
                channel.send(RUN, number, "id", "model", [text], {"beam": 1}, len(body))
            for _ in range(64):
                await answers.get()
        channel.close()
        peer.channel.close()

    return {
        "/api/run, one process, without HTTP": alone,
        "/api/run, the engine's process and the channel": behind,
    }


async def measure(engine: Engine, count: int, rounds: int) -> dict[str, Any]:
    parts = routes(engine) | responses() | counters() | deadlines() | whole(engine) | runs(engine)
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(rounds + 1):
        for name, part in parts.items():
            start = time.thread_time()
            await part(count)
            times[name].append(1e6 * (time.thread_time() - start) / count)
    return {
        name: {
            "µs": round(statistics.median(some[1:]), 2),
            "from": round(min(some[1:]), 2),
            "to": round(max(some[1:]), 2),
        }
        for name, some in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--quick", action="store_true", help="only to see that it runs")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    served = Served.of("model", transduce.load(options.model).freeze())  # type: ignore[arg-type]
    count, rounds = (64, 1) if options.quick else (1920, 15)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(measure(Engine(Catalogue([served])), count, rounds))
    for name, one in found.items():
        print(f"{name:50}{one['µs']:8.2f} µs  ({one['from']:.2f} to {one['to']:.2f})")
    if options.json:
        about = {**metadata(torch.device("cpu")), "requests": count, "rounds": rounds}
        text = json.dumps({"facts": about, "results": found}, indent=1, ensure_ascii=False)
        options.json.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
