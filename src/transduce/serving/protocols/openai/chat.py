"""A thin chat: the last message of the user is the source, the answer is the model's output."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest
from transduce.serving.limits import Limits
from transduce.serving.models import Served
from transduce.serving.protocols.answers import closing
from transduce.serving.protocols.openai.choices import Choice, respond, usage_is_wanted
from transduce.serving.protocols.openai.generation import (
    MAX_ALTERNATIVES,
    Step,
    choices_of,
    generate,
    hypotheses,
    only,
    stops_of,
)
from transduce.serving.protocols.openai.shapes import HARMLESS, new_id, now
from transduce.serving.protocols.parameters import ParameterError, Parameters, read_json

KNOWN = HARMLESS | frozenset(
    [
        "model",
        "messages",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "modalities",
        "n",
        "response_format",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "top_logprobs",
        "top_p",
    ]
)


class Chat:
    """POST /v1/chat/completions."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def create(self, request: Request) -> Response:
        asked = await read_json(request)
        served = self.engine.catalogue.find(asked.text("model"))
        request.scope["state"]["model"] = served.name
        if served.takes_audio or served.task not in ("transduce", "language_modeling"):
            raise BadRequest(
                f"{served.name} does not turn text into text, so it cannot chat; its task is "
                f"{served.task}{' of audio' if served.takes_audio else ''}"
            )
        asked.refuse_others(KNOWN, served.name)
        _refuse_formats(asked)
        stream, with_usage = asked.flag("stream"), usage_is_wanted(asked)
        source = last_user_message(asked)
        sampled = served.task == "language_modeling"
        settings = choices_of(asked, self.engine.limits, sampled, asked.flag("logprobs"))
        self.engine.check(served, [source], len(settings))
        head = {
            "id": new_id("chatcmpl"),
            "object": "chat.completion.chunk" if stream else "chat.completion",
            "created": now(),
            "model": served.name,
        }
        streams = await self._streams(asked, served, source, settings)
        stops, logprobs = bool(stops_of(asked, self.engine.limits)), asked.flag("logprobs")
        choices = [Message(index, steps, stops, logprobs) for index, steps in streams.items()]
        return await respond(
            self.engine, served, [source], choices, head, stream=stream, with_usage=with_usage
        )

    async def _streams(
        self, asked: Parameters, served: Served, source: str, settings: list[dict[str, Any]]
    ) -> dict[int, AsyncIterator[Step]]:
        """One for each choice, by its settings. What is not sampled and not streamed is the result
        of `run`, with the beam of the recipe, whatever else is asked of it."""
        limits, n = self.engine.limits, len(settings)
        maximum, stops = _maximum(asked, limits), stops_of(asked, limits)
        alternatives = asked.whole("top_logprobs", 0, 0, MAX_ALTERNATIVES) or 0
        logprobs = asked.flag("logprobs")
        if alternatives and not logprobs:
            raise ParameterError("top_logprobs needs logprobs; set it to true", "top_logprobs")
        drawn = bool(settings[0].get("sample"))
        if (n > 1 and not drawn) or not (asked.flag("stream") or logprobs or n > 1):
            (steps,) = await hypotheses(
                self.engine, served, [source], n, maximum, stops, **settings[0]
            )
            return {index: only(step) for index, step in enumerate(steps)}
        beam = settings[0].get("beam", served.model.recipe.decode.beam)
        if not drawn and beam > 1 and not asked.flag("stream"):
            return {0: self._scored(served, source, maximum, stops, alternatives)}
        return {
            index: generate(self.engine, served, source, maximum, stops, alternatives, **own)
            for index, own in enumerate(settings)
        }

    async def _scored(
        self,
        served: Served,
        source: str,
        maximum: int | None,
        stops: Sequence[str],
        alternatives: int,
    ) -> AsyncIterator[Step]:
        """The result of `run`, token by token: its text is given as the prefix of the output."""
        ((whole,),) = await hypotheses(self.engine, served, [source], 1, maximum, ())
        if not whole.text:
            yield whole
            return
        steps = generate(
            self.engine,
            served,
            source,
            whole.tokens,
            stops,
            alternatives,
            beam=1,
            prefix=whole.text,
        )
        text = ""
        async with closing(steps):
            async for step in steps:
                text += step.text
                if step.finish is not None and text == whole.text:  # no stop sequence was found
                    step.finish = whole.finish
                yield step


class Message(Choice):
    """A message of the assistant."""

    def __init__(
        self, index: int, source: AsyncIterator[Step], stops: bool, with_logprobs: bool
    ) -> None:
        super().__init__(index, source, stops)
        self.with_logprobs, self.begun = with_logprobs, False

    @property
    def has_chunk(self) -> bool:
        return super().has_chunk or (bool(self.steps) and not self.begun)

    def take_chunk(self) -> dict[str, Any]:
        shown = super().take_chunk()
        self.begun = True
        return shown

    def chunk(self) -> dict[str, Any]:
        delta: dict[str, Any] = {"content": self.text} if self.text else {}
        if not self.begun:
            delta = {"role": "assistant", "content": self.text}
        return self._shown("delta", delta)

    def whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.text, "refusal": None}
        return self._shown("message", message)

    def _shown(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        logprobs = {"content": [_logprob(step) for _, step in self.steps], "refusal": None}
        return {
            "index": self.index,
            name: content,
            "finish_reason": self.finish,
            "logprobs": logprobs if self.with_logprobs else None,
        }


def _logprob(step: Step) -> dict[str, Any]:
    def entry(token: str, value: float) -> dict[str, Any]:
        return {"token": token, "logprob": value, "bytes": list(token.encode("utf-8"))}

    top = [entry(*one) for one in step.alternatives]
    return {**entry(step.token, step.log_probability), "top_logprobs": top}


def _maximum(asked: Parameters, limits: Limits) -> int | None:
    name = "max_completion_tokens" if "max_completion_tokens" in asked else "max_tokens"
    return asked.whole(name, None, 1, limits.length)


def _refuse_formats(asked: Parameters) -> None:
    """What is the default, said aloud, is allowed."""
    allowed: dict[str, tuple[Any, ...]] = {
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "tool_choice": ("none", "auto"),  # there are no tools
    }
    for name, values in allowed.items():
        if name in asked and asked[name] not in values:
            either = " or ".join(map(str, values))
            raise ParameterError(f"{name} can only be {either}; leave it out", name)


def last_user_message(asked: Parameters) -> str:
    """Raises ParameterError where there is none, or it is not text."""
    messages = asked.get("messages")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise ParameterError("messages must be a list of messages", "messages")
    mine = [one for one in messages if one.get("role") == "user"]
    if not mine:
        raise ParameterError("messages has no message of the user, which is the source", "messages")
    content = mine[-1].get("content")
    if isinstance(content, list) and content:
        parts = [one.get("text") if isinstance(one, dict) else None for one in content]
        if all(isinstance(part, str) for part in parts):
            return "\n".join(str(part) for part in parts)
    if not isinstance(content, str):
        raise ParameterError("the content of a message must be text", "messages")
    return content
