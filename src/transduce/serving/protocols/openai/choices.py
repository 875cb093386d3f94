"""The response of completions and of chat: its choices, whole or as server-sent events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from transduce.serving.engine import Engine
from transduce.serving.models import Served
from transduce.serving.protocols.answers import DONE, EventStream, event, json_response
from transduce.serving.protocols.openai.generation import Step, gather, merge, tokens_in
from transduce.serving.protocols.openai.shapes import error_event, usage
from transduce.serving.protocols.parameters import ParameterError, Parameters


class Choice(ABC):
    """One of the n outputs of a response. Completions and chat each write it in their own shape.

    `text` and `steps` are those that are not in a chunk yet; of a whole response, all.
    """

    def __init__(self, index: int, source: AsyncIterator[Step], stops: bool) -> None:
        """stops: whether there are stop sequences."""
        self.index, self.source, self.stops = index, source, stops
        self.text = ""
        self.steps: list[tuple[int, Step]] = []
        """The tokens, and where each begins in the text of the choice."""
        self.finish: str | None = None
        self.tokens = 0
        """The number of generated tokens."""
        self.length = self.offset = 0
        """Characters: of the text, and of all its tokens."""

    def add(self, step: Step) -> None:
        self.text += step.text
        self.length += len(step.text)
        self.finish, self.tokens = step.finish, step.tokens
        if step.finish is None:
            self.steps.append((self.offset, step))
            self.offset += step.length
        elif self.stops:  # tokens of a stop sequence begin at the end of the text
            self.steps = [one for one in self.steps if one[0] < self.length]

    @property
    def has_chunk(self) -> bool:
        """Whether there is something new to show."""
        return bool(self.text) or self.finish is not None

    def take_chunk(self) -> dict[str, Any]:
        """What is new since the last chunk."""
        shown = self.chunk()
        self.text, self.steps = "", []
        return shown

    @abstractmethod
    def chunk(self) -> dict[str, Any]:
        """The choice in an event of a stream."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The choice in a response that is not streamed."""


def usage_is_wanted(asked: Parameters) -> bool:
    """Whether a stream ends with the number of tokens. Raises ParameterError."""
    options = asked.get("stream_options", {})
    if not isinstance(options, dict):
        raise ParameterError("stream_options must be an object", "stream_options")
    if options and not asked.flag("stream"):
        raise ParameterError("stream_options needs stream; set it to true", "stream_options")
    read = Parameters(options)
    read.refuse_others(("include_usage", "include_obfuscation"), "stream_options")
    return read.flag("include_usage")


async def respond(
    engine: Engine,
    served: Served,
    sources: Sequence[str],
    choices: Sequence[Choice],
    head: Mapping[str, Any],
    *,
    stream: bool,
    with_usage: bool,
) -> Response:
    """The choices, streamed or whole; head: what each event, or the whole, begins with."""

    async def total() -> dict[str, int]:
        read = await tokens_in(engine, served, sources)
        return usage(read, sum(choice.tokens for choice in choices))

    async def events() -> AsyncIterator[bytes]:
        no_usage = {"usage": None} if with_usage else {}
        for choice in choices:
            if choice.has_chunk:  # the prompt
                yield event({**head, "choices": [choice.take_chunk()], **no_usage})
        by_index = {choice.index: choice for choice in choices}
        async for index, step in merge({choice.index: choice.source for choice in choices}):
            choice = by_index[index]
            choice.add(step)
            if choice.has_chunk:
                yield event({**head, "choices": [choice.take_chunk()], **no_usage})
        if with_usage:
            yield event({**head, "choices": [], "usage": await total()})
        yield DONE

    async def read(choice: Choice) -> None:
        async for step in choice.source:
            choice.add(step)

    if stream:
        return await EventStream.of(events(), error_event)
    await gather(*map(read, choices))
    shown = [choice.whole() for choice in choices]
    return json_response({**head, "choices": shown, "usage": await total()})
