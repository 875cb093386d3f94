"""Responses: JSON, errors, server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from transduce.errors import TransduceError
from transduce.serving.errors import ServiceError, as_service_error

T = TypeVar("T")
DONE = b"data: [DONE]\n\n"
_JSON = msgspec.json.Encoder()


def to_json(value: Any) -> bytes:
    return _JSON.encode(value)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def event(value: Any, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + to_json(value) + b"\n\n"


@asynccontextmanager
async def closing(stream: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """Closes a stream on leaving: what it decodes for nobody is cancelled at once."""
    try:
        yield stream
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


class EventStream(StreamingResponse):
    """Server-sent events. The stream is closed when the client goes away; an error in the middle
    becomes its last event, as the status is sent already."""

    @classmethod
    async def of(
        cls, events: AsyncIterator[bytes], failed: Callable[[ServiceError], bytes]
    ) -> EventStream:
        """The response once its first event is there: an error before it is raised here, while the
        response can still have another status. failed: the event of an error."""
        return cls(await anext(events, b""), events, failed)

    def __init__(
        self, first: bytes, rest: AsyncIterator[bytes], failed: Callable[[ServiceError], bytes]
    ) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        self._first, self._rest, self._failed = first, rest, failed
        super().__init__(self._all(), headers=headers, media_type="text/event-stream")

    async def _all(self) -> AsyncIterator[bytes]:
        try:
            yield self._first
            async for one in self._rest:
                yield one
        except (ServiceError, TransduceError) as error:
            yield self._failed(as_service_error(error))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with closing(self._rest):
            await super().__call__(scope, receive, send)
