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
import time
from collections.abc import Collection, Sequence
from importlib.util import find_spec
from typing import Any, Protocol, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from transduce.serving import api
from transduce.serving.auth import Keys
from transduce.serving.engine import Engine
from transduce.serving.errors import (
    NotFound,
    Overloaded,
    ServiceError,
    TooLarge,
    Unauthorized,
    Unready,
    as_service_error,
    report,
)
from transduce.serving.exchange import LEFT, Exchange, Logged, ServiceState, write_log
from transduce.serving.settings import ServiceSettings
from transduce.serving.web import page

SWITCHING = 101
CLOSED = "after sending 'websocket.close'"
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


class Cancellable(Protocol):
    """A request that can be ended before its answer, with the reason."""

    def cancel(self, reason: ServiceError | None = None) -> None: ...


def build_app(engine: Engine, settings: ServiceSettings | None = None) -> Service:
    """The application that serves an engine under all protocols."""
    found: list[Any] = [api, page]
    for name in PROTOCOLS:
        module = f"transduce.serving.protocols.{name}"
        if find_spec(module) is not None:
            found.append(importlib.import_module(module))
    return Service(engine, settings or ServiceSettings(), cast(list[ProtocolModule], found))


class Service(ServiceState):
    """An ASGI application."""

    def __init__(
        self, engine: Engine, settings: ServiceSettings, protocols: Sequence[ProtocolModule]
    ) -> None:
        super().__init__(settings, lambda: engine.draining)
        self.engine, self.protocols = engine, protocols
        self.open: set[Cancellable] = set()
        """Requests that are being answered."""
        self.stop_seconds = 30.0
        """For the end of the engine's threads; they are left alone after that."""
        self.sockets = 0
        """WebSocket connections that are open."""
        self.router = Router(
            [route for protocol in protocols for route in protocol.routes(engine, settings)],
            redirect_slashes=False,
            default=_nowhere,
        )
        # Most requests are for one of these; the router would try one route after the other.
        self._exact = {
            (method, route.path): route.endpoint
            for route in reversed(self.router.routes)
            if isinstance(route, Route) and "{" not in route.path
            for method in route.methods or ()
            if inspect.iscoroutinefunction(route.endpoint)
        }
        self._prefixes = sorted(
            ((prefix, protocol) for protocol in protocols for prefix in protocol.PREFIXES),
            key=lambda pair: -len(pair[0]),
        )
        self._open_paths = _declared(protocols, "OPEN")
        self._key_in_body = _declared(protocols, "KEY_IN_BODY")
        engine.metrics.watch(
            lambda: engine.running,
            lambda: engine.waiting,
            lambda: engine.seconds_queued,
            lambda: len(engine.live.streams),
            lambda: engine.live.capacity.sessions(settings.limits.live_load),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                await asyncio.to_thread(self.engine.stop, self.stop_seconds)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        exchange = Exchange(self, scope, receive, send)
        self.open.add(exchange)
        try:
            await self._answer(exchange, scope)
        finally:
            self.open.discard(exchange)
            exchange.end()
            self.engine.metrics.responded(scope["method"], exchange.status)
            write_log(self.settings.log, scope, exchange, time.perf_counter() - start)

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:
        try:
            self._admit(scope, exchange)
            if exchange.preflight:
                await self._respond(exchange, scope, Response(status_code=204))
                return
            endpoint = self._exact.get((scope["method"], scope["path"]))
            if endpoint is not None:
                response = await endpoint(Request(scope, exchange.receive, exchange.send))
                await response(scope, exchange.receive, exchange.send)
                return
            scope["app"] = self  # so that the router raises what it does not find
            await self.router(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if exchange.reason is None and not exchange.left:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            await self._break_off(exchange, scope, exchange.reason)
        except ClientDisconnect:
            exchange.left = True
            exchange.status = exchange.status or LEFT
        except Exception as error:
            failure = as_service_error(error)
            if failure.status >= 500 and failure.code == "internal_error":
                report(f"request {exchange.id}", failure)
            await self._break_off(exchange, scope, failure)

    async def _break_off(
        self, exchange: Exchange, scope: Scope, failure: ServiceError | None
    ) -> None:
        """Answer with an error, unless the client has gone or its answer has begun."""
        if failure is None or exchange.left:
            exchange.status = exchange.status or LEFT
        elif exchange.status:
            await exchange.abort()
        else:
            await self._respond(exchange, scope, self.shaped(scope["path"], failure, exchange.id))

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit a connection and hand it to its route, or refuse it with an HTTP status."""
        start, own = time.perf_counter(), Logged(self.new_id())
        scope["state"] = {**scope.get("state", {}), "request_id": own.id}

        async def counted_receive() -> Message:
            message = await receive()
            own.received += len(message.get("bytes") or message.get("text") or "")
            return message

        async def counted_send(message: Message) -> None:
            if message["type"] == "websocket.accept":
                own.status = SWITCHING
                message.setdefault("headers", []).append((b"x-request-id", own.id.encode()))
            elif message["type"] == "websocket.http.response.start":
                own.status = message["status"]
            own.sent += len(message.get("bytes") or message.get("text") or "")
            try:
                await send(message)
            except RuntimeError as error:  # uvicorn's, where the connection has ended meanwhile
                if CLOSED not in str(error):
                    raise
                raise WebSocketDisconnect(1006) from None

        websocket = WebSocket(scope, counted_receive, counted_send)
        self.sockets += 1
        try:
            self._admit_websocket(websocket)
            async with self.engine.live.admitted():
                await self.router(scope, counted_receive, counted_send)
        except ServiceError as failure:
            await websocket.send_denial_response(self.shaped(scope["path"], failure, own.id))
        finally:
            self.sockets -= 1
            own.status = own.status or LEFT
            write_log(self.settings.log, scope, own, time.perf_counter() - start)

    def _admit_websocket(self, websocket: WebSocket) -> None:
        """Raises ServiceError: for another host or a page of another site, and without a key."""
        settings = self.settings
        settings.hosts.check("", dict(websocket.scope["headers"]), settings.cors)
        settings.keys.require(websocket)

    def check_open(self) -> None:
        """Raise Overloaded where more requests are open than may be, this one included."""
        if len(self.open) > self.settings.limits.connections:
            raise Overloaded("too many requests are open; send the request again later", 1.0)

    def drain(self) -> None:
        """No new requests are to be sent here; those that come are still answered."""
        self.engine.draining = True

    def end_live(self) -> None:
        """Live sessions have their last transcripts now."""
        self.engine.live.draining.set()

    def break_off(self) -> None:
        """Answer all open requests with 503: the server ends now."""
        for exchange in tuple(self.open):
            exchange.cancel(Unready("the server is stopping"))

    def _admit(self, scope: Scope, exchange: Exchange) -> None:
        """Check what needs no look at the body: whose request it is, then how much it is."""
        settings = self.settings
        settings.hosts.check(scope["method"], exchange.headers, settings.cors)
        self.check_open()
        if settings.keys.required and not exchange.preflight:
            path = scope["path"]
            if not _is_among(path, self._open_paths):
                exchange.key_is_missing = not settings.keys.knows(Request(scope))
                if exchange.key_is_missing and not _is_among(path, self._key_in_body):
                    raise Unauthorized
        if exchange.length > exchange.maximum:
            raise TooLarge(
                f"the body has {exchange.length:,} bytes; the maximum is {exchange.maximum:,}"
            )

    async def _respond(self, exchange: Exchange, scope: Scope, response: Response) -> None:
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


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound("there is nothing at this address")


def _declared(protocols: Sequence[ProtocolModule], name: str) -> frozenset[str]:
    """The paths that the protocols declare under a name."""
    found = (cast(Collection[str], getattr(protocol, name, ())) for protocol in protocols)
    return frozenset(path for paths in found for path in paths)


def _is_among(path: str, paths: Collection[str]) -> bool:
    """Whether a path is one of these, or directly below one that ends in /."""
    below = path[: path.rindex("/") + 1] if path.count("/") > 1 else path
    return path in paths or below in paths


__all__ = ["PROTOCOLS", "Keys", "ProtocolModule", "Service", "ServiceSettings", "build_app"]
