"""A WebSocket connection for live speech: what is the same for every protocol.

That is: idle time and length of a connection, errors, back-pressure, the end of the server, and
clients that go away.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import tempfile
from collections import deque
from typing import IO, Any

from numpy.typing import NDArray
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from transduce.errors import TransduceError
from transduce.serving.auth import KEY_PROTOCOL
from transduce.serving.errors import ServiceError, Timeout, Unready, as_service_error, report
from transduce.serving.live.engine import LiveEngine
from transduce.serving.live.stream import LiveStream
from transduce.serving.models import Served
from transduce.serving.protocols.answers import to_json
from transduce.tasks.live import Transcript

NORMAL, GOING_AWAY, ABNORMAL, REFUSED, FAILED, RESTART = 1000, 1001, 1006, 1008, 1011, 1012
LAST_SECONDS = 20.0  # for the last transcripts when the server stops
IN_MEMORY = 1 << 20  # bytes of messages that wait, before others are written to a file
ON_DISK = 64 << 20  # bytes of such a file, before another one is begun


class Conversation:
    """One connection; a protocol has a subclass. Messages are handled one after the other. They are
    read ahead, so that pings among them are answered however much audio waits; above the limit none
    is read, and the client is slowed down, by TCP."""

    restarts = True
    """Whether a new stream begins with the audio after one that failed."""

    def __init__(self, websocket: WebSocket, live: LiveEngine) -> None:
        self.websocket, self.live = websocket, live
        self.stream: LiveStream | None = None
        self.seconds_before = 0.0
        """Of audio in streams that are over."""
        self.rest = b""
        """Part of a sample whose other part has not come yet."""
        self._speaker: asyncio.Task[None] | None = None
        self._ahead = Backlog()
        self._gone: Message | None = None
        """How the client has left."""
        self._arrived, self._taken = asyncio.Event(), asyncio.Event()

    # ------------------------------------------------------------------- for the subclasses

    async def begin(self) -> None:
        """What is sent, or checked, first. Raises ServiceError."""

    async def hear(self, message: str | bytes) -> bool:
        """A message of the client; False ends the connection. Raises ServiceError."""
        raise NotImplementedError

    async def show(self, transcript: Transcript) -> None:
        """Send a transcript."""
        raise NotImplementedError

    async def fail(self, error: ServiceError) -> None:
        """Send an error, after which the connection may go on."""
        raise NotImplementedError

    async def finish(self) -> None:
        """The last transcripts, at the end of the connection."""
        await self.end_stream()

    # ---------------------------------------------------------------------------- streams

    async def open_stream(
        self, served: Served, rate: int, spoken: bool = True, **settings: Any
    ) -> None:
        """spoken: transcripts are sent as they come; otherwise by whoever asks for them."""
        self.websocket.scope["state"]["model"] = served.name
        self.stream = stream = await self.live.open(served, rate, **settings)
        stream.is_read = spoken
        if spoken:
            self._speaker = asyncio.create_task(self._speak(stream))

    def whole_samples(self, data: bytes, size: int = 2) -> bytes:
        """The whole samples, of so many bytes each; the rest waits for the next message."""
        data = self.rest + data
        end = len(data) - len(data) % size
        self.rest = data[end:]
        return data[:end]

    async def send_samples(self, samples: NDArray[Any]) -> None:
        """Hand over the samples of a message, as fast as they are recognised."""
        assert self.stream is not None
        for piece in self.stream.pieces(samples):
            await self.stream.send(piece)

    async def end_stream(self) -> None:
        """Finish the stream, and send its last transcripts."""
        stream, speaker = self.stream, self._speaker
        if stream is None:
            return
        try:
            await stream.finish()
            if speaker is not None:
                await speaker
        finally:
            self.drop_stream()

    def drop_stream(self) -> None:
        if self.stream is not None:
            self.seconds_before += self.stream.sent_seconds
            self.live.close(self.stream)
        if self._speaker is not None:
            self._speaker.cancel()
        self.stream = self._speaker = None

    async def _speak(self, stream: LiveStream) -> None:
        with contextlib.suppress(WebSocketDisconnect):  # the listener notices it as well
            while (transcript := await stream.get()) is not None:
                await self.show(transcript)

    async def send(self, value: Any) -> None:
        """Raises WebSocketDisconnect where the connection is closed, by either side."""
        try:
            await self.websocket.send_text(to_json(value).decode())
        except (RuntimeError, OSError):
            raise WebSocketDisconnect(ABNORMAL) from None

    # ------------------------------------------------------------------------- connection

    async def run(self) -> None:
        offered = self.websocket.scope.get("subprotocols", [])
        chosen = next((one for one in offered if not one.startswith(KEY_PROTOCOL)), None)
        await self.websocket.accept(chosen)
        reader = asyncio.create_task(self._read_ahead())
        listener = asyncio.create_task(self._listen())
        stopping = asyncio.create_task(self.live.draining.wait())
        code = NORMAL
        try:
            tasks = {listener, stopping}
            limit = self.live.limits.live_seconds
            await asyncio.wait(tasks, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if listener.done():
                code = listener.result()
            else:
                listener.cancel()
                await asyncio.wait({listener})
                code = await self._break_off(limit)
        except (WebSocketDisconnect, OSError):
            code = 0
        finally:
            for task in (listener, stopping, reader):
                task.cancel()
            self._drop_ahead()
            self.drop_stream()
        if code and self.websocket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
                await self.websocket.close(code)

    async def _break_off(self, limit: float) -> int:
        """The server stops, or the connection has lasted too long: with the last transcripts."""
        stops = self.live.draining.is_set()
        late = f"the session has lasted {limit:g} s, which is the maximum; connect again"
        why = Unready("the server is stopping") if stops else Timeout(late, 408)
        with contextlib.suppress(ServiceError, TimeoutError):
            async with asyncio.timeout(LAST_SECONDS):
                await self.finish()
        await self.fail(why)
        return RESTART if stops else GOING_AWAY

    async def _listen(self) -> int:
        """Handle messages until the end; the code with which the connection is closed."""
        try:
            await self.begin()
            while True:
                try:
                    if not await self.hear(await self._receive()):
                        return NORMAL
                except (ServiceError, TransduceError) as error:
                    failure = as_service_error(error)
                    self._report(failure)
                    if self.stream is not None and self.stream.error is not None:
                        self.drop_stream()
                    await self.fail(failure)
                    if isinstance(failure, Timeout):
                        return GOING_AWAY
                    if self.stream is None and not self.restarts:
                        return FAILED
        except ServiceError as refusal:  # of `begin`
            await self.fail(refusal)
            return REFUSED
        except (WebSocketDisconnect, OSError) as left:
            return FAILED if getattr(left, "code", 0) == FAILED else 0
        except Exception as error:
            failure = as_service_error(error)
            self._report(failure)
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
                await self.fail(failure)
            return FAILED

    async def _read_ahead(self) -> None:
        """Read messages before they are handled; of a client that has gone, they are dropped."""
        limits = self.live.limits
        while self._gone is None:
            message = await self.websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._gone = message
                self._drop_ahead()
            else:
                try:
                    self.live.ahead_bytes += self._ahead.put(message)
                except OSError:  # the disk is full
                    self._gone = {"code": FAILED}
            self._arrived.set()
            while self._ahead.size and (
                self._ahead.size > limits.live_ahead_bytes
                or self.live.ahead_bytes > limits.disk_bytes
            ):
                self._taken.clear()
                await self._taken.wait()

    def _drop_ahead(self) -> None:
        self.live.ahead_bytes -= self._ahead.clear()

    async def _next(self) -> str | bytes:
        while not self._ahead.size and self._gone is None:
            self._arrived.clear()
            await self._arrived.wait()
        if self._gone is not None:
            raise WebSocketDisconnect(self._gone.get("code", NORMAL))
        message, size = self._ahead.take()
        self.live.ahead_bytes -= size
        self._taken.set()
        return message

    async def _receive(self) -> str | bytes:
        idle = self.live.limits.live_idle_seconds
        try:
            async with asyncio.timeout(idle):
                return await self._next()
        except TimeoutError:
            with contextlib.suppress(ServiceError):
                await self.finish()
            raise Timeout(f"nothing was sent for {idle:g} s", 408) from None

    def _report(self, failure: ServiceError) -> None:
        if failure.code == "internal_error" and failure.__cause__ is not None:
            request = self.websocket.scope.get("state", {}).get("request_id", "")
            report(f"live session {request}", failure)


class Backlog:
    """Messages in the order in which they came: the first in memory, if more wait on disk."""

    def __init__(self) -> None:
        self.size = 0
        """What all of them take; an empty one takes a byte, too."""
        self._parts: deque[_Part] = deque()

    def put(self, message: Message) -> int:
        """The size of a message, which is kept."""
        text = message.get("text")
        encoded = None if text is None else text.encode("utf-8", "surrogatepass")
        kept: bytes = b"b" + message["bytes"] if encoded is None else b"t" + encoded
        if not self._parts or self._parts[-1].full:
            self._parts.append(_Part(on_disk=bool(self._parts)))
        self._parts[-1].put(kept)
        self.size += len(kept)
        return len(kept)

    def take(self) -> tuple[str | bytes, int]:
        """The first message, and its size."""
        kept = self._parts[0].take()
        if not self._parts[0].sizes:
            self._parts.popleft().file.close()
        self.size -= len(kept)
        text = kept[1:].decode("utf-8", "surrogatepass") if kept[:1] == b"t" else kept[1:]
        return text, len(kept)

    def clear(self) -> int:
        """The size of what was there."""
        size, self.size = self.size, 0
        while self._parts:
            self._parts.pop().file.close()
        return size


class _Part:
    """Some messages, one after the other in a file."""

    def __init__(self, on_disk: bool) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile() if on_disk else io.BytesIO()  # noqa: SIM115
        self.maximum = ON_DISK if on_disk else IN_MEMORY
        self.sizes: deque[int] = deque()
        self._read = self._written = 0

    @property
    def full(self) -> bool:
        return self._written >= self.maximum

    def put(self, kept: bytes) -> None:
        self.file.seek(self._written)
        self.file.write(kept)
        self._written += len(kept)
        self.sizes.append(len(kept))

    def take(self) -> bytes:
        self.file.seek(self._read)
        kept = self.file.read(self.sizes.popleft())
        self._read += len(kept)
        return kept
