"""An HTTP process: it reads requests of clients and writes their answers; the engine's process has
the models, and all that is counted over all clients.

A plain request for outputs (/api/run and the like, whole, right and without a stream) is parsed and
validated here, and the engine's process has its inputs and settings only. Every other request and
every WebSocket is passed on as it is, message by message, to the application there: so is each
request with a mistake, which is answered in the same words as by a server of one process.

This module does not import torch: a process has to start quickly, and to stay small.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

import uvicorn
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from transduce.serving.auth import Keys
from transduce.serving.errors import ServiceError
from transduce.serving.exchange import (
    ABORT,
    IS_WHOLE,
    LEFT,
    WHEN_LEFT,
    Logged,
    ServiceState,
    write_log,
)
from transduce.serving.hosts import Hosts
from transduce.serving.limits import Limits
from transduce.serving.processes import channel as kinds
from transduce.serving.processes.channel import Channel
from transduce.serving.request import parse_run
from transduce.serving.server import Server, quick_turns
from transduce.serving.settings import ServiceSettings

PR_SET_PDEATHSIG = 1  # of prctl, in Linux
TASKS = {"/api/run": None, "/api/classify": "classify", "/api/tag": "tag"}
"""The paths of requests for outputs, and the task of the models that they are for."""


class Forwarding(ServiceState):
    """The ASGI application of an HTTP process."""

    def __init__(self, settings: ServiceSettings, models: Mapping[str, str], channel: Channel):
        """models: the task of each model, by name."""
        super().__init__(settings, lambda: self._draining)
        self.models, self.channel = models, channel
        self.sockets, self.stop_seconds = 0, 0.0
        self._draining = False
        self._numbers = count()
        self._calls: dict[int, Callable[[kinds.Message], None]] = {}
        """What is called with the messages for each request."""

    def received(self, message: kinds.Message) -> None:
        """A message of the engine's process about a request."""
        call = self._calls.get(message[1])
        if call is not None:  # else its client has gone meanwhile
            call(message)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            self.sockets += 1
            try:
                await self._pass_on(scope, receive, send)
            finally:
                self.sockets -= 1
            return
        extensions: Any = scope.get("extensions") or {}
        is_whole = extensions.get(IS_WHOLE)
        if is_whole is None or not is_whole():  # the engine's process decides how long to wait
            await self._pass_on(scope, receive, send)
            return
        first = await receive()
        run = self._run_of(scope, first)
        if run is None:
            await self._pass_on(scope, receive, send, first)
        else:
            await self._run(scope, send, extensions[WHEN_LEFT], run, len(first["body"]))

    # --------------------------------------------------------------------------- as it is

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, first: Message | None = None
    ) -> None:
        """Have the application of the engine's process answer. Raises RuntimeError where that has
        failed."""
        number, arrived = next(self._numbers), asyncio.Queue[kinds.Message]()
        extensions: Any = scope.get("extensions") or {}
        when_left = extensions.get(WHEN_LEFT)

        def left() -> None:
            self.channel.send(kinds.LEFT, number)

        async def more() -> None:
            self.channel.send(kinds.PART, number, await receive())

        if when_left is not None:
            when_left.add(left)
        receiving: set[asyncio.Task[None]] = set()
        self._calls[number] = arrived.put_nowait
        gone: OSError | None = None
        try:
            self.channel.send(kinds.OPEN, number, _plain(scope), when_left is not None, first)
            while (message := await arrived.get())[0] != kinds.DONE:
                if message[0] == kinds.SEND:
                    gone = await self._send(number, message, send)
                elif message[0] == kinds.MORE:
                    task = asyncio.create_task(more())
                    receiving.add(task)
                    task.add_done_callback(receiving.discard)
                else:
                    await extensions[ABORT]()
        except BaseException:
            left()  # the application is not to wait for this request
            raise
        finally:
            del self._calls[number]
            if when_left is not None:
                when_left.discard(left)
            for task in receiving:
                task.cancel()
        if gone is not None:
            raise gone
        if message[2]:
            raise RuntimeError("the request failed in the engine's process; see above")

    async def _send(self, number: int, message: kinds.Message, send: Send) -> OSError | None:
        """Send an ASGI message to the client, and tell of it where that is wanted. An OSError is
        returned: it says that the client has gone, and ends the request once it is closed."""
        problem, gone = None, None
        try:
            await send(message[2])
        except OSError as error:
            problem, gone = (str(error), True), error
        except RuntimeError as error:
            problem = (str(error), False)
        if message[3]:
            self.channel.send(kinds.SENT, number, problem)
        return gone

    # -------------------------------------------------------------------- requests for outputs

    def _run_of(self, scope: Scope, first: Message) -> tuple[str, list[str], dict[str, Any]] | None:
        """The model, the inputs and the settings that a request asks for; None: it is no plain
        request for outputs, or not a right one."""
        path, limits = scope["path"], self.settings.limits
        if scope["method"] != "POST" or path not in TASKS or self._draining:
            return None
        body = first.get("body", b"")
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if b"origin" in headers or scope["query_string"] or len(body) > limits.body_bytes:
            return None
        if headers.get(b"content-type", b"").lower().startswith(b"multipart/"):
            return None
        if not self.settings.hosts.allow(headers.get(b"host", b"").decode("latin-1")):
            return None
        keys = self.settings.keys
        if keys.required and not keys.knows(HTTPConnection(scope)):
            return None
        try:
            asked = parse_run(body, limits)
            inputs = asked.all_inputs()
        except ServiceError:
            return None
        name, task = asked.model, TASKS[path]
        if name is None:
            fitting = (one for one, of in self.models.items() if task in (None, of))
            name = next(fitting, None)
        if name is None or name not in self.models or task not in (None, self.models[name]):
            return None
        # The terms of a glossary are looked for in threads of the engine's process.
        if not inputs or asked.stream or "glossary" in asked.settings:
            return None
        return name, inputs, asked.settings

    async def _run(
        self,
        scope: Scope,
        send: Send,
        when_left: set[Callable[[], None]],
        run: tuple[str, list[str], dict[str, Any]],
        size: int,
    ) -> None:
        start, own = time.perf_counter(), Logged(self.new_id(), received=size)
        scope["state"] = {"model": run[0]}
        number, future = next(self._numbers), asyncio.get_running_loop().create_future()

        def left() -> None:
            self.channel.send(kinds.LEFT, number)
            if not future.done():
                future.set_result(None)

        def answered(message: kinds.Message) -> None:
            if not future.done():
                future.set_result(message)

        when_left.add(left)
        self._calls[number] = answered
        try:
            self.channel.send(kinds.RUN, number, own.id, *run, size)
            found = await future
            own.status = LEFT if found is None else found[2]
        finally:
            del self._calls[number]
            when_left.discard(left)
        if found is not None:
            own.sent = len(found[3])
            await send(self._head(own, retry_after=found[4]))
            await send({"type": "http.response.body", "body": found[3]})
        write_log(self.settings.log, scope, own, time.perf_counter() - start)

    def _head(self, own: Logged, retry_after: int | None) -> Message:
        headers = [
            (b"content-length", b"%d" % own.sent),
            (b"content-type", b"application/json"),
            (b"x-request-id", own.id.encode()),
        ]
        if retry_after is not None:
            headers.append((b"retry-after", b"%d" % retry_after))
        if self._draining:  # so that clients connect to another replica
            headers.append((b"connection", b"close"))
        return {"type": "http.response.start", "status": own.status, "headers": headers}

    # ----------------------------------------------------------- the end, of which Server tells

    def drain(self) -> None:
        self._draining = True

    def end_live(self) -> None:
        """The engine's process does so, at the same time."""

    def break_off(self) -> None:
        """As well."""


def _plain(scope: Scope) -> dict[str, Any]:
    """A scope without what is of this process."""
    sent = {name: value for name, value in scope.items() if name not in ("state", "app")}
    given: Any = scope.get("extensions") or {}
    sent["extensions"] = {} if scope["type"] == "http" else given
    return sent


class HttpServer(Server):
    """A server that the engine's process tells of signals: those of a terminal or of systemd come
    to all processes."""

    def __init__(self, service: Forwarding) -> None:
        super().__init__(service)
        self.config.lifespan = "off"  # that of the application is the engine's process

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def _end_at_once(self) -> None:
        os._exit(1)


class HttpProcess:
    """One process, from its start to its end."""

    def __init__(self, own: socket.socket, listening: socket.socket) -> None:
        """own: its end of the channel."""
        self._own, self._listening = own, listening
        self._speaks, self._ended = True, False
        self._app: Forwarding | None = None
        self._server: HttpServer | None = None
        self._began: asyncio.Event | None = None

    async def run(self) -> None:
        self._began = asyncio.Event()
        self._channel = Channel(self._received, self._lost)
        await self._channel.connect(self._own)
        await self._began.wait()
        assert self._server is not None
        self._channel.send(kinds.READY)
        await self._server.serve([self._listening])
        self._ended = True
        self._channel.close()

    def _received(self, message: kinds.Message) -> None:
        if message[0] == kinds.HELLO:
            settings, models, self._speaks = _settings_of(message[1])
            self._app = Forwarding(settings, models, self._channel)
            self._server = HttpServer(self._app)
            assert self._began is not None
            self._began.set()
        elif message[0] == kinds.PING:
            self._channel.send(kinds.ALIVE)
        elif message[0] == kinds.DRAIN:
            self._speaks = False
            if self._server is not None:
                self._server.handle_exit(signal.SIGTERM, None)
        elif self._app is not None:
            self._app.received(message)

    def _lost(self) -> None:
        """The engine's process has ended: there is nothing to answer with."""
        if self._ended:
            return
        if self._speaks:
            sys.stderr.write("transduce: the engine's process has ended, and the server with it\n")
            sys.stderr.flush()
        os._exit(1)


def hello_of(
    settings: ServiceSettings, models: Mapping[str, str], speaks: bool
) -> dict[str, object]:
    """What an HTTP process is told at its start; speaks: it says when the engine's process ends."""
    limits = {name: getattr(settings.limits, name) for name in Limits.__dataclass_fields__}
    return {
        "keys": settings.keys.listed,
        "cors": settings.cors,
        "hosts": settings.hosts.names,
        "addresses": settings.hosts.addresses,
        "limits": limits,
        "log": settings.log is not None,
        "accept_seconds": settings.accept_seconds,
        "drain_seconds": settings.drain_seconds,
        "models": list(models.items()),
        "speaks": speaks,
    }


def _settings_of(hello: Mapping[str, Any]) -> tuple[ServiceSettings, dict[str, str], bool]:
    settings = ServiceSettings(
        keys=Keys(hello["keys"]),
        cors=tuple(hello["cors"]),
        hosts=Hosts(tuple(hello["hosts"]), hello["addresses"]),
        limits=Limits(**hello["limits"]),
        log=sys.stderr if hello["log"] else None,
        accept_seconds=hello["accept_seconds"],
        drain_seconds=hello["drain_seconds"],
    )
    return settings, dict(hello["models"]), hello["speaks"]


def _end_with_parent() -> None:
    """On Linux the kernel ends this process with its parent, also where the event loop is stuck;
    elsewhere it ends when the channel does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """The arguments are file descriptors: of its end of the channel, and of the socket on which it
    listens."""
    _end_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    own, listening = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    process = HttpProcess(own, listening)
    with (
        quick_turns(),
        asyncio.Runner(loop_factory=uvicorn.Config("").get_loop_factory()) as runner,
    ):
        runner.run(process.run())


if __name__ == "__main__":
    main()
