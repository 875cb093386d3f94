"""A live connection: messages are read ahead, within limits, and a client may go at any time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra serve")

from starlette.websockets import WebSocketDisconnect, WebSocketState

from transduce.serving.errors import ServiceError
from transduce.serving.limits import Limits
from transduce.serving.live import conversation
from transduce.serving.live.conversation import Conversation

GONE = {"type": "websocket.disconnect", "code": 1001}


class FakeSocket:
    """Gives the messages of a client, and then waits; sending fails once it is closed."""

    def __init__(self, *messages: Any) -> None:
        self.messages = [m if isinstance(m, dict) else {"type": "x", "bytes": m} for m in messages]
        self.read = 0
        self.sent: list[str] = []
        self.scope: dict[str, Any] = {}
        self.application_state = WebSocketState.CONNECTED
        self.closed = False

    async def accept(self, protocol: str | None) -> None:
        pass

    async def receive(self) -> Any:
        if self.read == len(self.messages):
            await asyncio.sleep(1_000)
        self.read += 1
        return self.messages[self.read - 1]

    async def send_text(self, text: str) -> None:
        if self.closed:
            raise RuntimeError("Unexpected ASGI message, after sending websocket.close")
        self.sent.append(text)

    async def close(self, code: int) -> None:
        self.closed = True


class Slow(Conversation):
    """Handles a message when it is let."""

    def __init__(self, socket: FakeSocket) -> None:
        live: Any = SimpleNamespace(limits=Limits(), draining=asyncio.Event())
        super().__init__(socket, live)  # type: ignore[arg-type]
        self.may = asyncio.Semaphore(0)
        self.heard: list[Any] = []

    async def hear(self, message: str | bytes) -> bool:
        await self.may.acquire()
        self.heard.append(message)
        return message != b"end"

    async def fail(self, error: ServiceError) -> None:
        await self.send({"error": error.message})


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_messages_are_read_while_one_is_handled() -> None:
    """Pings come between them: they are answered when they are read."""

    async def use() -> None:
        socket = FakeSocket(*[bytes([n]) for n in range(100)], b"end")
        own = Slow(socket)
        running = asyncio.create_task(own.run())
        await settle()
        await settle()
        assert (socket.read, own.heard) == (101, [])
        for _ in range(101):
            own.may.release()
        await running
        assert own.heard == [*(bytes([n]) for n in range(100)), b"end"]
        assert socket.closed

    asyncio.run(use())


def test_so_many_bytes_are_read_ahead_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "AHEAD_BYTES", 1_000)

    async def use() -> None:
        socket = FakeSocket(*[bytes(300)] * 20, b"end")
        own = Slow(socket)
        running = asyncio.create_task(own.run())
        await settle()
        assert socket.read == 5  # one is handled, and four are above the limit
        own.may.release()
        await settle()
        assert socket.read == 6
        for _ in range(20):
            own.may.release()
        await running
        assert len(own.heard) == 21

    asyncio.run(use())


def test_what_a_client_sent_before_it_went_is_dropped() -> None:
    async def use() -> None:
        own = Slow(FakeSocket(b"a", b"b", b"c", GONE))
        running = asyncio.create_task(own.run())
        await settle()
        own.may.release()
        await running
        assert b"b" not in own.heard

    asyncio.run(use())


def test_nothing_is_sent_after_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    async def use() -> None:
        socket = FakeSocket(b"end")
        own = Slow(socket)
        own.may.release()
        await own.run()
        with pytest.raises(WebSocketDisconnect):
            await own.send({"type": "partial"})
        own.live.limits = Limits(live_idle_seconds=0.1)
        await own.run()  # it fails at once, without a traceback

    asyncio.run(use())
    assert capfd.readouterr().err == ""
