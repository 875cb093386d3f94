"""One request and its response, as seen between the HTTP server and the routes: how much of the
body has arrived, whether the client is still there, and the headers that all responses have."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TextIO

import msgspec
from starlette.types import Message, Receive, Scope, Send

from transduce.serving.errors import Overloaded, ServiceError, Timeout, TooLarge, Unauthorized
from transduce.serving.settings import ServiceSettings

WHEN_LEFT = "transduce.when_left"
"""The ASGI extension by which our server makes calls when the client goes away: a set of them."""
ABORT = "transduce.abort"
"""The ASGI extension that ends the connection of a request."""
IS_WHOLE = "transduce.is_whole"
"""The ASGI extension that tells whether the whole body of a request has arrived."""
LEFT = 499  # in the log: the client went away before its answer
# With other servers a task has to wait for that; not for requests that are answered sooner.
WATCH_AFTER = 0.01
# Clients have headers of their own, such as OpenAI's x-stainless-*.
HEADER_NAMES = re.compile(rb"[A-Za-z0-9-]+(?:, ?[A-Za-z0-9-]+){0,99}")
ALLOWED_HEADERS = b"authorization, content-type"


@dataclass(eq=False)
class Logged:
    """What the access log says of a request, or of a WebSocket connection."""

    id: str
    status: int = 0
    received: int = 0
    sent: int = 0


def write_log(log: TextIO | None, scope: Scope, logged: Logged, seconds: float) -> None:
    """A line of the access log; None: there is none."""
    if log is None:
        return
    client = scope.get("client")
    line = msgspec.json.encode(
        {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "request_id": logged.id,
            "client": client[0] if client else None,
            "method": scope.get("method", "GET"),
            "path": scope["path"],  # without the query, which may have a key
            "status": logged.status,
            "seconds": round(seconds, 6),
            "received": logged.received,
            "sent": logged.sent,
            "model": scope.get("state", {}).get("model"),
        }
    )
    with suppress(OSError, ValueError):  # a log that cannot be written must not stop the server
        log.write(line.decode() + "\n")
        log.flush()


class ServiceState:
    """What all requests of a service share."""

    def __init__(self, settings: ServiceSettings, draining: Callable[[], bool]) -> None:
        """draining: whether no new requests are to be sent here."""
        self.settings, self.draining = settings, draining
        self.in_memory = self.on_disk = 0
        """Bytes of the bodies of requests that are being answered."""
        self._ids = Random()

    def new_id(self) -> str:
        """An id for a request: unique, not secret."""
        return f"{self._ids.getrandbits(128):032x}"


class Exchange(Logged):
    """One request and its response, as seen between the server and the routes."""

    def __init__(self, service: ServiceState, scope: Scope, receive: Receive, send: Send) -> None:
        super().__init__(service.new_id())
        self.left = False
        """Whether the client went away before the end of its answer."""
        self.reason: ServiceError | None = None
        """Why the handler was cancelled, where the client is to be told."""
        self.key_is_missing = False
        """Whether a key is needed, and the headers and the query have none."""
        self.limits, self.folders = service.settings.limits, service.settings.folders
        scope["state"] = {**scope.get("state", {}), "request_id": self.id, "exchange": self}
        self._service, self._receive, self._send = service, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self._multipart = self.headers.get(b"content-type", b"").lower().startswith(b"multipart/")
        self._files = False
        """Whether the body goes to the disk."""
        self._in_memory = self._on_disk = 0
        """Bytes that count among those of all requests."""
        length = self.headers.get(b"content-length", b"")
        self.length = int(length[:20]) if length.isdigit() else 0
        """The length of the body, as far as it is announced."""
        self._task = asyncio.current_task()
        self._extensions: Any = scope.get("extensions") or {}
        self._when_left: set[Callable[[], None]] | None = self._extensions.get(WHEN_LEFT)
        self._timer: asyncio.TimerHandle | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._whole = False
        self._began = time.monotonic()
        self._origin = ""
        if allowed := service.settings.cors:
            origin = self.headers.get(b"origin", b"").decode("latin-1")
            self._origin = "*" if "*" in allowed else origin if origin in allowed else ""
        self.preflight = bool(
            self._origin
            and scope["method"] == "OPTIONS"
            and b"access-control-request-method" in self.headers
        )

    # ----------------------------------------------------------------------------- the body

    @property
    def maximum(self) -> int:
        """The bytes that the body may have, as far as is known before it is read."""
        if self._multipart:
            return self.limits.upload_bytes
        return self._max_in_memory

    @property
    def _max_in_memory(self) -> int:
        if self.key_is_missing:
            return min(self.limits.keyless_bytes, self.limits.body_bytes)
        return self.limits.body_bytes

    def take_files(self) -> None:
        """The body may be as long as one with files."""
        self._files = True

    def show_key(self, key: str | None) -> None:
        """A key that was found in the body. Raises Unauthorized."""
        if self.key_is_missing:
            self._service.settings.keys.check(key)
            self.key_is_missing = False

    async def receive(self) -> Message:
        if self._whole:  # a response that streams waits for the client to leave
            return await self._receive()
        loop = asyncio.get_running_loop()
        silent = loop.call_later(self.limits.idle_seconds, self._give_up)
        try:
            message = await self._receive()
        finally:
            silent.cancel()
        if message["type"] == "http.request":
            self._count(len(message.get("body", b"")))
            if not message.get("more_body"):
                self._whole = True
                if self._when_left is not None:
                    self._when_left.add(self._leave)
                else:
                    self._timer = loop.call_later(WATCH_AFTER, self._begin_watch)
        return message

    def _count(self, size: int) -> None:
        """So many more bytes have arrived. Raises TooLarge, Timeout and Overloaded."""
        self.received += size
        maximum = self.limits.upload_bytes if self._files else self._max_in_memory
        if self.received > maximum:
            raise TooLarge(f"the body is larger than {maximum:,} bytes")
        late = time.monotonic() - self._began - self.limits.idle_seconds
        if late * self.limits.bytes_a_second > self.received:
            raise Timeout(
                f"the body arrives with less than {self.limits.bytes_a_second:,} bytes a second",
                status=408,
            )
        self.count_file(size) if self._files else self._count_in_memory(size)

    def count_file(self, size: int) -> None:
        """A file was written for this request, of so many bytes. Raises Overloaded."""
        self._on_disk += size
        self._service.on_disk += size
        self._check_total(self._service.on_disk, self.limits.disk_bytes)

    def _count_in_memory(self, size: int) -> None:
        self._in_memory += size
        self._service.in_memory += size
        self._check_total(self._service.in_memory, self.limits.memory_bytes)

    def _check_total(self, size: int, maximum: int) -> None:
        if size > maximum:
            raise Overloaded("too many large bodies are being received; send it later", 5.0)

    def _give_up(self) -> None:
        seconds = self.limits.idle_seconds
        self.cancel(Timeout(f"no part of the body arrived within {seconds:g} s", status=408))

    # --------------------------------------------------------------------- leaving and ending

    def cancel(self, reason: ServiceError | None = None) -> None:
        """Cancel the handler; without a reason, the client has gone away."""
        if reason is None:
            self.left = True
        else:
            self.reason = reason
        if self._task is not None:
            self._task.cancel()

    def _begin_watch(self) -> None:
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._leave()

    def _leave(self) -> None:
        self.cancel()

    async def abort(self) -> None:
        """End the connection in the middle of an answer, so that nobody takes it for whole."""
        close = self._extensions.get(ABORT)
        if close is None:
            raise RuntimeError("an answer was broken off; the server has to end its connection")
        await close()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self.key_is_missing and message["status"] < 400:  # no handler has looked for it
                raise Unauthorized
            self.status = message["status"]
            headers = message.setdefault("headers", [])
            headers.append((b"x-request-id", self.id.encode()))
            if self._origin:
                headers.append((b"access-control-allow-origin", self._origin.encode()))
                headers.append((b"vary", b"Origin"))
                if self.preflight:
                    headers.append((b"access-control-allow-methods", b"GET, POST, OPTIONS"))
                    asked = self.headers.get(b"access-control-request-headers", b"")
                    allowed = asked if HEADER_NAMES.fullmatch(asked) else ALLOWED_HEADERS
                    headers.append((b"access-control-allow-headers", allowed))
                    headers.append((b"access-control-max-age", b"600"))
            if self._service.draining():  # so that clients connect to another replica
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

    def end(self) -> None:
        """The request is over, and its body is no longer kept."""
        self.close()
        self._service.in_memory -= self._in_memory
        self._service.on_disk -= self._on_disk
