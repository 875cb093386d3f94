"""The HTTP server: uvicorn, with its socket, signals and draining."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from transduce.errors import DataError
from transduce.serving.app import WHEN_LEFT, Service
from transduce.serving.settings import ServiceSettings

SWITCH_SECONDS = 0.0005  # the event loop waits for the decoding thread at most this long
NEW_OBJECTS = 20_000  # between two looks of the garbage collector; requests leave few cycles
BACKLOG = 2048
LAST_SECONDS = 0.5  # for requests on connections that were made last
LIVE_SECONDS = 25.0  # for the last transcripts of live sessions


def _is_no_refusal(record: logging.LogRecord) -> bool:
    """False for what uvicorn logs of each WebSocket that was answered with an HTTP status, as if
    that were a mistake of the application."""
    return "without completing handshake" not in record.getMessage()


def connection_class(seconds: float) -> type[asyncio.Protocol] | str:
    """uvicorn's connections, closed where no whole request head arrives within some seconds; they
    tell the application at once when the client goes away."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # httptools is not there: without this protection
        return "auto"

    class Connection(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_silent)
            self._when_left: set[Callable[[], None]] = set()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.scope["extensions"] = {WHEN_LEFT: self._when_left}  # type: ignore[dict-item]

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for call in tuple(self._when_left):
                call()

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
            ws_max_size=service.settings.limits.live_message_bytes,
            ws_per_message_deflate=False,  # audio hardly gets smaller
            ws_ping_timeout=60.0,  # an answer may be behind audio that is not read yet
            http=connection_class(service.settings.limits.idle_seconds),
        )
        logging.getLogger("uvicorn.error").addFilter(_is_no_refusal)
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
            self.service.engine.live.draining.set()
            now = time.monotonic()
            self._ends = self._ends or now + self.service.settings.drain_seconds
            self.should_exit |= now >= self._ends
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and close connections only when their first request has had time to
        arrive: uvicorn would close those that were made just now, with the request under way."""
        for listening in sockets or ():
            await self._accept_all(listening)
        self.service.engine.live.draining.set()
        end = time.monotonic() + LIVE_SECONDS
        while self.service.sockets and not self.force_exit and time.monotonic() < end:
            await asyncio.sleep(0.02)
        if not self.force_exit:
            await asyncio.sleep(LAST_SECONDS)
        await super().shutdown(sockets)

    async def _accept_all(self, listening: socket.socket) -> None:
        """Accept the connections that the kernel has made already, and stop listening at once: any
        that nobody has accepted would be reset, with its request."""
        listening.setblocking(False)
        accepted = []
        with contextlib.suppress(OSError):
            while True:
                accepted.append(listening.accept()[0])
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for one in accepted:
            with contextlib.suppress(OSError):  # the client has gone meanwhile
                await loop.connect_accepted_socket(self._protocol, one)

    def _protocol(self) -> asyncio.Protocol:
        """The protocol of a connection, as uvicorn makes it."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made


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
    interval, (new, *others) = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(NEW_OBJECTS, *others)
    try:
        Server(service).run([listening])
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(new, *others)
