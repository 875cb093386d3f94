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
from transduce.serving.protocols.answers import (
    DONE,
    EventStream,
    closing,
    event,
    json_response,
)
from transduce.serving.protocols.openai.generation import (
    MAX_ALTERNATIVES,
    Step,
    choices_of,
    gather,
    generate,
    given,
    hypotheses,
    merge,
    stops_of,
    stream_options_of,
    tokens_in,
)
from transduce.serving.protocols.openai.shapes import HARMLESS, error_event, new_id, now, usage
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
        source = last_user_message(asked)
        sampled = served.task == "language_modeling"
        settings = choices_of(asked, self.engine.limits, sampled, asked.flag("logprobs"))
        self.engine.check(served, [source], len(settings))
        head = {"id": new_id("chatcmpl"), "created": now(), "model": served.name}
        streams = await self._streams(asked, served, source, settings)
        if asked.flag("stream"):
            wanted = stream_options_of(asked)
            head["object"] = "chat.completion.chunk"
            prompt_tokens = await tokens_in(self.engine, served, [source]) if wanted else None
            chunks = _chunks(streams, head, asked, prompt_tokens)
            return await EventStream.of(chunks, error_event)
        head["object"] = "chat.completion"
        found = await gather(*(_choice(n, one, asked) for n, one in streams.items()))
        tokens = sum(count for _, count in found)
        return json_response(
            {
                **head,
                "choices": [choice for choice, _ in found],
                "usage": usage(await tokens_in(self.engine, served, [source]), tokens),
            }
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
            return {index: given(step) for index, step in enumerate(steps)}
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


async def _choice(
    index: int, steps: AsyncIterator[Step], asked: Parameters
) -> tuple[dict[str, Any], int]:
    text, logprobs, step = "", [], Step("")
    async for step in steps:
        text += step.text
        if step.finish is None:
            logprobs.append(_logprob(step))
    shown = {"content": logprobs, "refusal": None} if asked.flag("logprobs") else None
    return _message(index, text, step.finish, shown), step.tokens


def _message(
    index: int, text: str, finish: str | None, logprobs: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "finish_reason": finish,
        "logprobs": logprobs,
    }


async def _chunks(
    streams: dict[int, AsyncIterator[Step]],
    head: dict[str, Any],
    asked: Parameters,
    prompt_tokens: int | None,
) -> AsyncIterator[bytes]:
    counts: dict[int, int] = {}
    wanted = asked.flag("logprobs")
    waiting: dict[int, list[dict[str, Any]]] = {index: [] for index in streams}
    empty = {} if prompt_tokens is None else {"usage": None}
    async for index, step in merge(streams):
        delta: dict[str, Any] = {"content": step.text} if step.text else {}
        if index not in counts:
            delta = {"role": "assistant", "content": step.text}
        counts[index] = step.tokens
        if step.finish is None:
            waiting[index].append(_logprob(step))
        if not delta and step.finish is None:
            continue
        logprobs = {"content": waiting[index], "refusal": None} if wanted else None
        waiting[index] = []
        choice = {
            "index": index,
            "delta": delta,
            "finish_reason": step.finish,
            "logprobs": logprobs,
        }
        yield event({**head, "choices": [choice], **empty})
    if prompt_tokens is not None:
        total = usage(prompt_tokens, sum(counts.values()))
        yield event({**head, "choices": [], "usage": total})
    yield DONE


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
