"""WebSocket connections: API keys, origins, limits and the access log, for every protocol."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from starlette.responses import Response
from starlette.routing import Router
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from transduce.serving.errors import Overloaded, ServiceError
from transduce.serving.settings import ServiceSettings

SWITCHING = 101
CLOSED = "after sending 'websocket.close'"


@dataclass
class Connection:
    """What the access log says of a connection."""

    id: str
    status: int = 0
    received: int = 0
    sent: int = 0


class Service(Protocol):
    """What is needed of the application."""

    settings: ServiceSettings
    router: Router
    sockets: int

    def new_id(self) -> str: ...

    def shaped(self, path: str, error: ServiceError, request_id: str) -> Response: ...

    def log(self, scope: Scope, exchange: Connection, seconds: float) -> None: ...


async def serve_websocket(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Admit a connection and hand it to its route, or refuse it with an HTTP status."""
    start, own = time.perf_counter(), Connection(service.new_id())
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
    service.sockets += 1
    try:
        try:
            _admit(service, websocket)
        except ServiceError as failure:
            response = service.shaped(scope["path"], failure, own.id)
            await websocket.send_denial_response(response)
            return
        await service.router(scope, counted_receive, counted_send)
    finally:
        service.sockets -= 1
        service.log(scope, own, time.perf_counter() - start)


def _admit(service: Service, websocket: WebSocket) -> None:
    """Raises ServiceError: for another host or a page of another site, without a key, and when
    there are too many."""
    settings = service.settings
    settings.hosts.check("", dict(websocket.scope["headers"]), settings.cors)
    settings.keys.require(websocket)
    if service.sockets > settings.limits.live_sessions:
        raise Overloaded("too many live sessions are open; connect again later", 5.0)
