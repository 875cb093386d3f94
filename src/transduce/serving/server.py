"""The HTTP server: uvicorn, with its socket, signals and draining."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import logging
import os
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Protocol

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from transduce.errors import DataError
from transduce.serving.exchange import ABORT, IS_WHOLE, WHEN_LEFT
from transduce.serving.limits import Limits
from transduce.serving.settings import ServiceSettings

SWITCH_SECONDS = 0.0005  # the event loop waits for the decoding thread at most this long
NEW_OBJECTS = 20_000  # between two looks of the garbage collector; requests leave few cycles
BACKLOG = 2048
LAST_SECONDS = 0.5  # for requests on connections that were made last
FIRST_SECONDS = 3.0  # and for the first one of a client that is slow
LIVE_SECONDS = 25.0  # for the last transcripts of live sessions
SPARE_SECONDS = 2.0  # before the end at once, for answers of 503 and the end of threads
ABORT_SECONDS = 0.3  # from these answers to the end of their connections
SO_ATTACH_FILTER = 26  # of Linux
TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
    b"content-type: text/plain\r\ncontent-length: 35\r\n\r\nthe head of the request is too long"
)
NOT_OURS = (
    "without completing handshake",
    "Invalid HTTP request",
    "Unsupported upgrade",
    "Invalid UTF-8 sequence",
)


def _is_no_mistake_of_ours(record: logging.LogRecord) -> bool:
    """False for what uvicorn logs of clients' mistakes: each WebSocket that was answered with an
    HTTP status, as if that were a mistake of the application, and what is no HTTP."""
    message = record.getMessage()
    return not any(one in message for one in NOT_OURS)


def connection_class(limits: Limits) -> type[asyncio.Protocol] | str:
    """uvicorn's connections with limits: of the size of a request head, of the time in which it
    must be complete, the first as well as later ones, and of the time in which a client must read.
    They tell the application at once when the client goes away."""
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
    except ImportError:  # httptools is not there: without this protection
        return "auto"
    seconds = limits.idle_seconds

    class Connection(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._when_left: set[Callable[[], None]] = set()
            self._gone = asyncio.Event()
            self._since: float | None = time.monotonic()
            """Since when the client has owed the rest of what it sends; None: it owes nothing."""
            self._head = self._unread = 0
            """Bytes of a head that is not complete, and of the answer that was not read."""
            self._message_complete = True
            self._look_later()

        def _look_later(self) -> None:
            self._timer = self.loop.call_later(seconds / 2, self._look)

        def _look(self) -> None:
            """Close the connection of a client that owes something for too long."""
            if self._gone.is_set() or (
                self not in self.connections and not self.transport.is_closing()
            ):
                return  # or it has become a WebSocket
            unread = self.transport.get_write_buffer_size()
            if unread and unread == self._unread:
                self.transport.abort()
                return
            self._unread = unread
            if self._since is not None and time.monotonic() - self._since >= seconds:
                self.transport.close()
            self._look_later()

        @property
        def _is_busy(self) -> bool:
            cycle = getattr(self, "cycle", None)
            return cycle is not None and not cycle.response_complete

        def data_received(self, data: bytes) -> None:
            if self._since is None and not self._is_busy:
                self._since = time.monotonic()
            super().data_received(data)
            if self._since is None or self._is_busy:
                self._head = 0
                return
            self._head += len(data)
            if self._message_complete and self._head > limits.head_bytes:
                self.transport.write(TOO_LONG)
                self.transport.close()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            extensions: Any = {
                WHEN_LEFT: self._when_left,
                ABORT: self._abort,
                IS_WHOLE: self._is_whole,
            }
            self.scope["extensions"] = extensions

        def on_headers_complete(self) -> None:
            self._message_complete = False
            self._since = None
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._message_complete = True
            super().on_message_complete()
            # A long body has paused reading, and the end of the connection would not be read.
            if not self.pipeline and not self.transport.is_closing():
                self.flow.resume_reading()

        def on_response_complete(self) -> None:
            if not self._message_complete:  # the rest of a body that was refused
                self._since = time.monotonic()
            super().on_response_complete()

        def _is_whole(self) -> bool:
            return self._message_complete

        async def _abort(self) -> None:
            self.transport.abort()
            await self._gone.wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._gone.set()
            self._timer.cancel()
            for call in tuple(self._when_left):
                call()

    return Connection


class WebSocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's, where nothing is read before the handshake is answered: it cannot deal with frames
    that are wrong, or with the end of the connection, before that."""

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.handshake_complete:
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if message["type"] == "websocket.accept" and not self.read_paused:
            self.transport.resume_reading()


class Application(Protocol):
    """The ASGI application of a server, and what it is told when the server ends."""

    settings: ServiceSettings
    sockets: int
    """WebSocket connections that are open."""
    stop_seconds: float

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    @property
    def draining(self) -> Callable[[], bool]: ...

    def drain(self) -> None: ...

    def end_live(self) -> None: ...

    def break_off(self) -> None: ...


class Server(uvicorn.Server):
    """A server that drains on SIGTERM and Ctrl-C.

    /ready answers 503 and every response closes its connection, but new requests are still served
    for `accept_seconds`: a load balancer needs that time to notice. Then the server stops
    listening, finishes what is open, and ends: `drain_seconds` after the signal at the latest, with
    503 for what is still open. A second signal skips the wait; with a third, that end is now.
    """

    def __init__(self, service: Application) -> None:
        limits = service.settings.limits
        config = uvicorn.Config(
            service,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=limits.keep_alive_seconds,
            ws=WebSocketConnection,
            ws_max_size=limits.live_message_bytes,
            ws_per_message_deflate=False,  # audio hardly gets smaller
            ws_ping_timeout=None,  # an answer may be behind audio; silent clients are idle
            http=connection_class(limits),
        )
        logging.getLogger("uvicorn.error").addFilter(_is_no_mistake_of_ours)
        super().__init__(config)
        self.service = service
        self._signals = 0
        self._signalled: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.last: threading.Timer | None = None
        """Ends the process, once there was a signal: also where the server has ended, but a thread
        is busy. Where the process is to go on after its server, it has to be cancelled."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self._signals:
            self._signalled = time.monotonic()
            self.last = threading.Timer(self.service.settings.drain_seconds, self._end_at_once)
            self.last.daemon = True
            self.last.start()
        self._signals += 1
        self.service.drain()
        self.should_exit = self._signals > 1
        if self._signals > 2 and self._loop is not None:
            self._loop.call_soon_threadsafe(self._break_off)

    def _end_at_once(self) -> None:
        end_at_once(self.service.settings)

    def _seconds_left(self) -> float:
        """Until the end at once."""
        if self._signalled is None:
            return self.service.settings.drain_seconds
        return self._signalled + self.service.settings.drain_seconds - time.monotonic()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second; True ends the server."""
        if self.service.draining():
            self.service.end_live()
            self._signalled = self._signalled or time.monotonic()
            settings = self.service.settings
            accept = min(settings.accept_seconds, settings.drain_seconds / 2)
            self.should_exit |= time.monotonic() >= self._signalled + accept
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and close connections only when their first request has had time to
        arrive: uvicorn would close those that were made just now, with the request under way."""
        for listening in sockets or ():
            await self._accept_all(listening)
        self.service.end_live()
        # The last part of the time is for answers of 503 and for the threads.
        spare = min(SPARE_SECONDS, self.service.settings.drain_seconds / 4)
        self.service.stop_seconds = spare / 2
        loop = asyncio.get_running_loop()
        breaking = loop.call_later(self._seconds_left() - spare, self._break_off)
        end = time.monotonic() + min(LIVE_SECONDS, self._seconds_left() - spare)
        while self.service.sockets and self._signals < 3 and time.monotonic() < end:
            await asyncio.sleep(0.02)
        if self._signals < 3:
            await asyncio.sleep(min(LAST_SECONDS, max(0.0, self._seconds_left() - spare)))
        end = time.monotonic() + min(FIRST_SECONDS, self._seconds_left() - spare)
        while self._owes_its_first() and self._signals < 3 and time.monotonic() < end:
            await asyncio.sleep(0.02)
        try:
            await super().shutdown(sockets)
        finally:
            breaking.cancel()

    def _owes_its_first(self) -> bool:
        """Whether there is a connection on which no request has arrived yet."""
        return any(getattr(one, "cycle", self) is None for one in self.server_state.connections)

    def _break_off(self) -> None:
        """Answer what is open with 503, and end connections that do not take it."""
        self.service.break_off()
        asyncio.get_running_loop().call_later(ABORT_SECONDS, self._abort)

    def _abort(self) -> None:
        self.force_exit = self._signals > 2
        for connection in tuple(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()

    async def _accept_all(self, listening: socket.socket) -> None:
        """Accept the connections that the kernel has made already, and stop listening at once: any
        that nobody has accepted would be reset, with its request."""
        listening.setblocking(False)
        make_no_connections(listening)
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


def end_at_once(settings: ServiceSettings) -> None:
    """The time is over, and something does not let the process end: the event loop, or a thread
    that is busy."""
    for folder in tuple(settings.folders):
        shutil.rmtree(folder, ignore_errors=True)
    sys.stderr.write("transduce: ended with work that was not finished in time\n")
    sys.stderr.flush()
    os._exit(1)


def open_many_files() -> None:
    """Let this process, and those that it starts, have as many connections as the system allows it:
    the usual 1,024 are soon held by clients that send nothing."""
    with contextlib.suppress(ImportError):  # Windows has no such limit
        import resource

        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        with contextlib.suppress(OSError, ValueError):  # macOS: less than the limit that it tells
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listen(host: str, port: int) -> socket.socket:
    """A socket on an address. Raises DataError."""
    listening = _bound(host, port)
    listening.listen(BACKLOG)
    return listening


def make_no_connections(listening: socket.socket) -> None:
    """From now on the kernel drops what clients send to a listening socket to connect, where it can
    (Linux). They try again, and are refused when the socket is closed; what was connected stays.
    """
    if sys.platform != "linux":
        return
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # BPF: return 0
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    with contextlib.suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def listen_together(host: str, port: int, count: int) -> list[socket.socket]:
    """Sockets for several processes on one address; the kernel spreads connections over them.
    Raises DataError."""
    if count == 1 or sys.platform != "linux":  # elsewhere it does not: they share one
        return [listen(host, port)] * count
    # One that shares its port would be let in beside another server, unnoticed: so first alone.
    with _bound(host, port) as alone:
        port = alone.getsockname()[1]
    found = [_bound(host, port, shared=True) for _ in range(count)]
    for listening in found:
        listening.listen(BACKLOG)
    return found


def _bound(host: str, port: int, shared: bool = False) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((host, port))
    except OSError as error:
        raise DataError(
            f"the server cannot listen on {host}, port {port} ({error.strerror}); choose another "
            f"--host or --port"
        ) from None
    return bound


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


@contextlib.contextmanager
def quick_turns() -> Iterator[None]:
    """The event loop waits little: for the thread that decodes, and for the garbage collector."""
    interval, (new, *others) = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(NEW_OBJECTS, *others)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(new, *others)


def serve_until_stopped(service: Application, listening: socket.socket) -> None:
    """Serve on a socket until SIGTERM or Ctrl-C."""
    with quick_turns():
        Server(service).run([listening])
