"""Several streams in one, as their items come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

from transduce.errors import TransduceError
from transduce.serving.errors import BadRequest, ServiceError
from transduce.serving.protocols.answers import closing, event
from transduce.serving.protocols.openai.shapes import error_fields

T = TypeVar("T")


async def merge(streams: Mapping[int, AsyncIterator[T]]) -> AsyncIterator[tuple[int, T]]:
    """Items of all streams with their numbers. Closed early, or failing, it ends them all."""
    if len(streams) == 1:
        ((number, only),) = streams.items()
        async with closing(only):
            async for item in only:
                yield number, item
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(maxsize=64)

    async def follow(number: int, stream: AsyncIterator[T]) -> None:
        try:
            async with closing(stream):
                async for item in stream:
                    await queue.put((number, item))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(follow(*one)) for one in streams.items()]
    try:
        open_streams = len(tasks)
        while open_streams:
            found = await queue.get()
            if found is None:
                open_streams -= 1
            elif isinstance(found, Exception):
                raise found
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def with_errors(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """An error in the middle of a stream becomes its last event: the status is sent already."""
    try:
        async with closing(events):
            async for one in events:
                yield one
    except TransduceError as error:
        yield event({"error": error_fields(BadRequest(str(error)))})
    except ServiceError as error:
        yield event({"error": error_fields(error)})
