"""The HTTP server: uvicorn, with its socket, signals and draining."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import sys
import time
from types import FrameType

import uvicorn

from transduce.errors import DataError
from transduce.serving.app import Service
from transduce.serving.settings import ServiceSettings

SWITCH_SECONDS = 0.0005  # the event loop waits for the decoding thread at most this long
BACKLOG = 2048
LAST_SECONDS = 0.5  # for requests on connections that were made last


def connection_class(seconds: float) -> type[asyncio.Protocol] | str:
    """uvicorn's connections, closed where no whole request head arrives within some seconds."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # httptools is not there: without this protection
        return "auto"

    class Connection(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_silent)

        def _close_silent(self) -> None:
            # One that has become a WebSocket is no longer among the connections.
            if getattr(self, "cycle", None) is None and self in self.connections:
                self.transport.close()

    return Connection


class Server(uvicorn.Server):
    """A server that drains on SIGTERM and Ctrl-C.

    /ready answers 503 and every response closes its connection, but new requests are still served
    for `drain_seconds`: a load balancer needs that time to notice. Then the server stops listening,
    finishes what is open, and ends. A second signal skips the wait; a third ends it at once.
    """

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            service,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=30,
            ws="websockets-sansio",
            http=connection_class(service.settings.limits.idle_seconds),
        )
        super().__init__(config)
        self.service = service
        self._signals = 0
        self._ends: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        self.service.engine.draining = True
        self.force_exit = self._signals > 2
        self.should_exit = self._signals > 1

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server."""
        if self.service.engine.draining:
            now = time.monotonic()
            self._ends = self._ends or now + self.service.settings.drain_seconds
            self.should_exit |= now >= self._ends
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and close connections only when their first request has had time to
        arrive: uvicorn would close those that were made just now, with the request under way."""
        for server in self.servers:
            server.close()
        if not self.force_exit:
            await asyncio.sleep(LAST_SECONDS)
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket on an address. Raises DataError."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        raise DataError(
            f"the server cannot listen on {host}, port {port} ({error.strerror}); choose another "
            f"--host or --port"
        ) from None
    return listening


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def unprotected(host: str, settings: ServiceSettings) -> str:
    """A warning where other machines can reach a server without API keys; empty: none."""
    if is_loopback(host) or settings.keys.required:
        return ""
    return (
        f"warning: other machines can reach the server at {host}, and it needs no API key; give "
        f"--api-keys FILE, or leave out --host"
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve_until_stopped(service: Service, listening: socket.socket) -> None:
    """Serve on a socket until SIGTERM or Ctrl-C."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        Server(service).run([listening])
    finally:
        sys.setswitchinterval(before)
