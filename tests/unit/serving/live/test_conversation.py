"""A live connection: messages are read ahead, within limits, and a client may go at any time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="needs the extra serve")

from starlette.websockets import WebSocketDisconnect, WebSocketState

from transduce.serving.errors import ServiceError
from transduce.serving.limits import Limits
from transduce.serving.live import conversation
from transduce.serving.live.conversation import Backlog, Conversation

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

    def __init__(self, socket: FakeSocket, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        live: Any = SimpleNamespace(limits=limits, draining=asyncio.Event(), ahead_bytes=0)
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


@pytest.mark.parametrize("name", ["live_ahead_bytes", "disk_bytes"])
def test_so_many_bytes_are_read_ahead_and_no_more(name: str) -> None:
    async def use() -> None:
        socket = FakeSocket(*[bytes(300)] * 20, b"end")
        own = Slow(socket, Limits(**{name: 1_000}))
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
        assert own.live.ahead_bytes == 0

    asyncio.run(use())


def test_what_others_sent_ahead_stops_nobody_who_has_sent_nothing() -> None:
    async def use() -> None:
        own = Slow(FakeSocket(b"a", b"end"), Limits(disk_bytes=1_000))
        own.live.ahead_bytes = 5_000  # of another connection
        own.may.release()
        own.may.release()
        await own.run()
        assert own.heard == [b"a", b"end"]
        assert own.live.ahead_bytes == 5_000

    asyncio.run(use())


@given(
    messages=st.lists(st.text(max_size=9) | st.binary(max_size=9), min_size=1, max_size=40),
    turns=st.lists(st.booleans(), max_size=80),
)
def test_messages_that_wait_on_disk_are_those_that_came(
    messages: list[str | bytes], turns: list[bool]
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(conversation, "IN_MEMORY", 8)
        patched.setattr(conversation, "ON_DISK", 20)
        backlog, found, waiting = Backlog(), [], iter(messages)
        for puts in [*turns, *[True] * len(messages)]:
            if puts and (one := next(waiting, None)) is not None:
                backlog.put({"text" if isinstance(one, str) else "bytes": one})
            elif not puts and backlog.size:
                found.append(backlog.take()[0])
        while backlog.size:
            found.append(backlog.take()[0])
        assert found == messages
        assert not backlog._parts
        for one in messages:
            backlog.put({"bytes": one.encode() if isinstance(one, str) else one})
        files = [part.file for part in backlog._parts]
        assert backlog.clear() > 0
        assert backlog.size == 0
        assert all(file.closed for file in files)


def test_a_full_disk_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Backlog, "put", full)

    async def use() -> None:
        socket = FakeSocket(b"a")
        await asyncio.wait_for(Slow(socket).run(), 60)
        assert socket.closed

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
