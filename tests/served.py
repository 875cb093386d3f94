"""A server on this machine, on a free port, in a thread; and models whose steps can be held up."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx

from transduce.serving.app import Service, build_app
from transduce.serving.engine import Engine
from transduce.serving.models import PAIR, Catalogue, Served
from transduce.serving.processes.engine import EngineProcess
from transduce.serving.server import Server, listen_together, url_of
from transduce.serving.settings import ServiceSettings
from transduce.tasks import NgramModel
from transduce.tasks.model import Model


@dataclass
class Running:
    url: str
    engine: Engine
    service: Service
    client: httpx.Client
    process: EngineProcess | None = None
    """Where there are HTTP processes before it."""
    stop: Callable[[], None] = field(default=lambda: None)
    """Do as after a signal."""

    def post(self, path: str, value: Any, **more: Any) -> httpx.Response:
        return self.client.post(path, json=value, **more)

    def run(self, **request: Any) -> list[dict[str, Any]]:
        """The outputs of /api/run; fails where there are none."""
        answer = self.post("/api/run", request)
        assert answer.status_code == 200, answer.text
        outputs: list[dict[str, Any]] = answer.json()["outputs"]
        return outputs


@contextmanager
def serving(
    models: Mapping[str, Model],
    settings: ServiceSettings | None = None,
    processes: int = 1,
    ngrams: Mapping[str, NgramModel] | None = None,
) -> Iterator[Running]:
    """processes: HTTP processes."""
    settings = settings or ServiceSettings()
    pairs = {name: PAIR.fullmatch(name) for name in models}
    catalogue = Catalogue(
        [
            Served.of(name, model.freeze(), (pair[1], pair[2]) if (pair := pairs[name]) else None)
            for name, model in models.items()
        ],
        list((ngrams or {}).items()),
    )
    engine = Engine(catalogue, settings.limits)
    service = build_app(engine, settings)
    listening = listen_together("127.0.0.1", 0, processes)
    url = url_of(listening[0])
    process = EngineProcess(service, listening) if processes > 1 else None
    server = Server(service)
    run = partial(server.run, listening) if process is None else process.run
    stop = partial(server.handle_exit, signal.SIGTERM, None) if process is None else process.stop
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        with httpx.Client(base_url=url, timeout=200, trust_env=False) as client:
            yield Running(url, engine, service, client, process, stop)
    finally:
        for model in models.values():
            if isinstance(held := getattr(model, "held", None), Held):
                held.free.set()
        server.should_exit = True
        for _ in range(2):  # the second time it does not wait for new requests
            if process is not None and thread.is_alive():
                stop()
        thread.join(timeout=100)
        if server.last is not None:
            server.last.cancel()
        for one in listening:
            one.close()
        assert not thread.is_alive(), "the server did not end"


class Held:
    """Wraps the search of a model so that each step waits for `step()`, until `free` is set."""

    def __init__(self, model: Model) -> None:
        self.steps = 0
        self.free = threading.Event()
        self._may = threading.Semaphore(0)
        original: Callable[..., Any] = model._stepper  # type: ignore[attr-defined]

        def stepper(settings: Any, *context: Any) -> Any:
            return _HeldStepper(original(settings, *context), self)

        model._stepper = stepper  # type: ignore[attr-defined]
        model.held = self  # type: ignore[attr-defined]  # a test that fails frees it

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._may.release()

    def wait(self) -> None:
        self.steps += 1
        while not self.free.is_set():
            if self._may.acquire(timeout=0.02):
                return


class _HeldStepper:
    def __init__(self, stepper: Any, held: Held) -> None:
        self.stepper, self.held = stepper, held

    def start(self, *arguments: Any) -> Any:
        return self.stepper.start(*arguments)

    def step(self, *arguments: Any) -> Any:
        self.held.wait()
        return self.stepper.step(*arguments)


def until(met: Callable[[], bool], what: str, seconds: float = 100.0) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.005)
