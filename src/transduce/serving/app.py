"""The ASGI application: routes of all protocols, and what is the same for each of them.

That is: a request id, the access log, metrics, API keys, CORS, limits, errors in the shape of each
protocol, and clients that go away.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import math
import sys
import time
import traceback
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from random import Random
from typing import Any, Protocol, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Message, Receive, Scope, Send

from transduce.errors import TransduceError
from transduce.serving import api
from transduce.serving.auth import Keys
from transduce.serving.engine import Engine
from transduce.serving.errors import (
    BadRequest,
    NotFound,
    Overloaded,
    ServiceError,
    Timeout,
    TooLarge,
)
from transduce.serving.limits import Deadlines
from transduce.serving.live.websocket import serve_websocket
from transduce.serving.settings import ServiceSettings
from transduce.serving.web import page

WHEN_LEFT = "transduce.when_left"
"""The ASGI extension by which our server makes calls when the client goes away: a set of them."""
# With other servers a task has to wait for that; not for requests that are answered sooner.
WATCH_AFTER = 0.01
PROTOCOLS = ("libretranslate", "openai", "deepl", "vosk", "live")
"""Modules of serving/protocols; those that are there are served."""


class ProtocolModule(Protocol):
    """What a module of a protocol has.

    It may also have OPEN, paths that need no API key (one that ends in / is for all directly below
    it), and KEY_IN_BODY, paths whose handler looks for the key in the body and calls
    settings.keys.require itself.
    """

    PREFIXES: Sequence[str]
    """The beginnings of its paths; errors on these have its shape."""

    def routes(self, engine: Engine, settings: ServiceSettings) -> list[BaseRoute]: ...

    def error(self, error: ServiceError, request_id: str) -> Response: ...


def build_app(engine: Engine, settings: ServiceSettings | None = None) -> Service:
    """The application that serves an engine under all protocols."""
    found: list[Any] = [api, page]
    for name in PROTOCOLS:
        module = f"transduce.serving.protocols.{name}"
        if find_spec(module) is not None:
            found.append(importlib.import_module(module))
    return Service(engine, settings or ServiceSettings(), cast(list[ProtocolModule], found))


class Service:
    """An ASGI application."""

    def __init__(
        self, engine: Engine, settings: ServiceSettings, protocols: Sequence[ProtocolModule]
    ) -> None:
        self.engine, self.settings, self.protocols = engine, settings, protocols
        self.open = 0
        """Requests that are being answered."""
        self.sockets = 0
        """WebSocket connections that are open."""
        self.router = Router(
            [route for protocol in protocols for route in protocol.routes(engine, settings)],
            redirect_slashes=False,
        )
        # Most requests are for one of these; the router would try one route after the other.
        self._exact = {
            (method, route.path): route.endpoint
            for route in reversed(self.router.routes)
            if isinstance(route, Route) and "{" not in route.path
            for method in route.methods or ()
            if inspect.iscoroutinefunction(route.endpoint)
        }
        self._ids = Random()
        self.silent = Deadlines(settings.limits.idle_seconds)
        """Of requests whose next part has not arrived."""
        self._prefixes = sorted(
            ((prefix, protocol) for protocol in protocols for prefix in protocol.PREFIXES),
            key=lambda pair: -len(pair[0]),
        )
        self._keyless = frozenset(
            path
            for protocol in protocols
            for name in ("OPEN", "KEY_IN_BODY")
            for path in cast(Collection[str], getattr(protocol, name, ()))
        )
        engine.metrics.watch(
            lambda: engine.running,
            lambda: engine.waiting,
            lambda: engine.seconds_queued,
            lambda: len(engine.live.streams),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await serve_websocket(self, scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self.engine.stop)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        exchange = _Exchange(self, scope, receive, send)
        self.open += 1
        try:
            await self._answer(exchange, scope)
        finally:
            self.open -= 1
            exchange.close()
            self.engine.metrics.responded(scope["method"], exchange.status)
            self.log(scope, exchange, time.perf_counter() - start)

    async def _answer(self, exchange: _Exchange, scope: Scope) -> None:
        try:
            if exchange.preflight:
                await self._respond(exchange, scope, Response(status_code=204))
                return
            self._admit(scope, exchange)
            endpoint = self._exact.get((scope["method"], scope["path"]))
            if endpoint is not None:
                response = await endpoint(Request(scope, exchange.receive, exchange.send))
                await response(scope, exchange.receive, exchange.send)
                return
            scope["app"] = self  # so that the router raises what it does not find
            await self.router(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not exchange.left:
                raise
            # The client has gone; there is nobody to answer.
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            exchange.status = exchange.status or 499
        except Exception as error:
            failure = _failure(error)
            if failure.status >= 500 and failure.code == "internal_error":
                self._report(exchange.id, failure.__cause__ or error)
            if exchange.status:  # the answer has begun; end the connection
                raise
            await self._respond(exchange, scope, self.shaped(scope["path"], failure, exchange.id))

    def new_id(self) -> str:
        """An id for a request: unique, not secret."""
        return f"{self._ids.getrandbits(128):032x}"

    def _admit(self, scope: Scope, exchange: _Exchange) -> None:
        """Check what needs no look at the body."""
        if self.open > self.settings.limits.connections:
            raise Overloaded("too many requests are open; send the request again later", 1.0)
        length, most = exchange.length, exchange.limit
        if length > most:
            raise TooLarge(f"the body has {length:,} bytes; the maximum is {most:,}")
        if self.settings.keys.required and not self._is_keyless(scope["path"]):
            self.settings.keys.require(Request(scope))

    def _is_keyless(self, path: str) -> bool:
        below = path[: path.rindex("/") + 1] if path.count("/") > 1 else path
        return path in self._keyless or below in self._keyless

    async def _respond(self, exchange: _Exchange, scope: Scope, response: Response) -> None:
        # A client that goes away now needs no answer.
        with contextlib.suppress(OSError):
            await response(scope, exchange.receive, exchange.send)

    def shaped(self, path: str, error: ServiceError, request_id: str) -> Response:
        protocol = next((p for prefix, p in self._prefixes if path.startswith(prefix)), None)
        shape = protocol.error if protocol is not None else api.error
        response = shape(error, request_id)
        if error.retry_after is not None:
            response.headers["retry-after"] = str(math.ceil(error.retry_after))
        return response

    def _report(self, request_id: str, error: BaseException) -> None:
        print(f"request {request_id} failed:", file=sys.stderr)
        traceback.print_exception(error)

    def log(self, scope: Scope, exchange: Logged, seconds: float) -> None:
        if self.settings.log is None:
            return
        client = scope.get("client")
        line = msgspec.json.encode(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "request_id": exchange.id,
                "client": client[0] if client else None,
                "method": scope.get("method", "GET"),
                "path": scope["path"],  # without the query, which may have a key
                "status": exchange.status,
                "seconds": round(seconds, 6),
                "received": exchange.received,
                "sent": exchange.sent,
                "model": scope.get("state", {}).get("model"),
            }
        )
        # A log that cannot be written must not stop the server.
        with contextlib.suppress(OSError, ValueError):
            self.settings.log.write(line.decode() + "\n")
            self.settings.log.flush()


class Logged(Protocol):
    """What the access log says of a request."""

    id: str
    status: int
    received: int
    sent: int


class _Exchange:
    """One request and its response, as seen between the server and the routes."""

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.id = service.new_id()
        self.status = 0
        self.received = self.sent = 0
        self.left = False
        """Whether the client went away before the end of its answer."""
        scope.setdefault("state", {})["request_id"] = self.id  # a copy for each request
        self._service, self._receive, self._send = service, receive, send
        limits = service.settings.limits
        headers: dict[bytes, bytes] = dict(scope["headers"])
        multipart = headers.get(b"content-type", b"").lower().startswith(b"multipart/")
        self.limit = limits.upload_bytes if multipart else limits.body_bytes
        length = headers.get(b"content-length", b"")
        self.length = int(length) if length.isdigit() else 0
        """The length of the body, as far as it is announced."""
        self._task = asyncio.current_task()
        self._when_left = scope.get("extensions", {}).get(WHEN_LEFT)
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._whole = self._slow = False
        self._origin = ""
        if allowed := service.settings.cors:
            origin = headers.get(b"origin", b"").decode("latin-1")
            self._origin = "*" if "*" in allowed else origin if origin in allowed else ""
        self.preflight = bool(
            self._origin
            and scope["method"] == "OPTIONS"
            and b"access-control-request-method" in headers
        )

    async def receive(self) -> Message:
        if self._whole:  # a response that streams waits for the client to leave
            return await self._receive()
        silent = self._service.silent
        silent.add(self._give_up)
        try:
            message = await self._receive()
        except asyncio.CancelledError:
            if not self._slow:
                raise
            assert self._task is not None
            self._task.uncancel()
            raise Timeout(
                f"no part of the body arrived within {silent.seconds:g} s", status=408
            ) from None
        finally:
            silent.discard(self._give_up)
        if message["type"] == "http.request":
            self.received += len(message.get("body", b""))
            if self.received > self.limit:
                raise TooLarge(f"the body is larger than {self.limit:,} bytes")
            if not message.get("more_body"):
                self._whole = True
                if self._when_left is not None:
                    self._when_left.add(self._leave)
                else:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(WATCH_AFTER, self._begin_watch)
        return message

    def _give_up(self) -> None:
        self._slow = True
        if self._task is not None:
            self._task.cancel()

    def _begin_watch(self) -> None:
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        """The client has gone away: cancel the handler."""
        self.left = True
        if self._task is not None:
            self._task.cancel()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers.append((b"x-request-id", self.id.encode()))
            if self._origin:
                headers.append((b"access-control-allow-origin", self._origin.encode()))
                headers.append((b"vary", b"Origin"))
                if self.preflight:
                    headers.append((b"access-control-allow-methods", b"GET, POST, OPTIONS"))
                    headers.append(
                        (b"access-control-allow-headers", b"authorization, content-type")
                    )
                    headers.append((b"access-control-max-age", b"600"))
            if self._service.engine.draining:  # so that clients connect to another replica
                headers.append((b"connection", b"close"))
        else:
            self.sent += len(message.get("body", b""))
            if not message.get("more_body"):
                self.close()  # from here on, the end of the connection is no loss
        await self._send(message)

    def close(self) -> None:
        if self._when_left is not None:
            self._when_left.discard(self._leave)
        if self._timer is not None:
            self._timer.cancel()
        if self._watcher is not None and not self._watcher.done():
            self._watcher.cancel()


def _failure(error: Exception) -> ServiceError:
    if isinstance(error, ServiceError):
        return error
    if isinstance(error, TransduceError):
        return BadRequest(str(error))
    status, detail = getattr(error, "status_code", None), getattr(error, "detail", "")
    if status == 404:
        return NotFound("there is nothing at this address")
    if isinstance(status, int):  # of Starlette
        return ServiceError(status, str(detail).lower() or "the request failed", "http_error")
    return ServiceError(500, "the server failed on this request", "internal_error")


__all__ = ["PROTOCOLS", "Keys", "ProtocolModule", "Service", "ServiceSettings", "build_app"]
