"""Messages between an HTTP process and the engine's process, over a Unix socket.

A message is a tuple of plain values: its kind, mostly the number of a request, and what that kind
has. All messages that are sent in one turn of the event loop are one frame: its length in four
bytes, then MessagePack, a list of them.
"""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable
from typing import Any, cast

import msgspec

HEAD = 4  # bytes, of the length of a frame
ARRAY = b"\xdd"  # of MessagePack: a list, whose length is in the next four bytes

# ------------------------------------------------------------------ from the HTTP process
READY = 0
"""It serves from now on."""
OPEN = 1
"""A request or a WebSocket: number, ASGI scope, whether LEFT will tell of its end, and its first
ASGI message, or None."""
PART = 2
"""The ASGI message that MORE asked for: number, message."""
SENT = 3
"""A message of SEND was sent: number, and None; or an error: its text, and whether it is an OSError
or a RuntimeError."""
LEFT = 4
"""The connection of a request has ended: number."""
RUN = 5
"""A request for outputs: number, request id, name of the model, inputs, settings, bytes of the
body."""
ALIVE = 6
"""The answer to PING."""

# ---------------------------------------------------------------- from the engine's process
HELLO = 10
"""The first message: how to serve."""
MORE = 11
"""The next ASGI message is wanted: number."""
SEND = 12
"""An ASGI message for the client: number, message, and whether SENT is to tell of it."""
ABORT = 13
"""The connection of a request is to be ended: number."""
DONE = 14
"""The application is done with a request: number, and whether by an exception."""
RESULT = 15
"""The answer to RUN: number, status, body, and seconds for Retry-After, or None."""
DRAIN = 16
"""A signal has asked the server to end."""
PING = 17
"""Asks whether the HTTP process still runs."""

Message = list[Any]


class Channel(asyncio.Protocol):
    """One end of the socket between two processes."""

    def __init__(self, receive: Callable[[Message], None], lost: Callable[[], None]) -> None:
        """receive: called with each message; lost: when the other process has ended."""
        self._receive, self._lost = receive, lost
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._in = bytearray()
        self._transport: asyncio.Transport | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder().decode

    async def connect(self, own: socket.socket) -> None:
        """Use one of a pair of sockets. Messages may come before it returns."""
        await self._loop.create_unix_connection(lambda: self, sock=own)

    def send(self, *message: Any) -> None:
        """Raises TypeError and ValueError for what is no plain value; others are not harmed."""
        self._out.append(self._encode(message))
        if len(self._out) == 1:
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what waits: as one frame."""
        if self._out and self._transport is not None and not self._transport.is_closing():
            listed = ARRAY + len(self._out).to_bytes(4, "big")
            size = len(listed) + sum(map(len, self._out))
            frame = [size.to_bytes(HEAD, "little"), listed, *self._out]
            self._transport.write(b"".join(frame))
        self._out = []

    def close(self) -> None:
        self.flush()
        if self._transport is not None:
            self._transport.close()

    # ---------------------------------------------------------------- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._in += data
        while len(self._in) >= HEAD:
            end = HEAD + int.from_bytes(self._in[:HEAD], "little")
            if len(self._in) < end:
                return
            frame = bytes(self._in[HEAD:end])
            del self._in[:end]
            for message in self._decode(frame):
                try:
                    self._receive(message)
                except Exception:  # one request must not end all others
                    traceback.print_exc()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost()
