"""Completions of prompts by language models."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest
from transduce.serving.models import Served
from transduce.serving.protocols.answers import DONE, EventStream, event, json_response
from transduce.serving.protocols.openai.generation import (
    Step,
    choices_of,
    gather,
    generate,
    given,
    hypotheses,
    merge,
    shown,
    stops_of,
    stream_options_of,
    tokens_in,
)
from transduce.serving.protocols.openai.shapes import HARMLESS, error_event, new_id, now, usage
from transduce.serving.protocols.parameters import ParameterError, Parameters, read_json

KNOWN = HARMLESS | frozenset(
    [
        "model",
        "prompt",
        "best_of",
        "echo",
        "logprobs",
        "max_tokens",
        "n",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
    ]
)
MAX_LOGPROBS = 5


@dataclass
class Asked:
    """A request for completions, checked."""

    served: Served
    prompts: list[str]
    n: int
    maximum: int
    stops: list[str]
    echo: bool
    logprobs: int | None
    settings: list[dict[str, Any]]
    """Of each of the n choices."""

    @property
    def choices(self) -> list[tuple[int, str, dict[str, Any]]]:
        """Index, prompt and settings of each choice."""
        pairs = [(prompt, own) for prompt in self.prompts for own in self.settings]
        return [(index, prompt, own) for index, (prompt, own) in enumerate(pairs)]

    @property
    def by_beam(self) -> bool:
        """Whether the n choices are the n best of beam search."""
        return self.n > 1 and not self.settings[0].get("sample")


@dataclass
class Logprobs:
    """Tokens with their log-probabilities, and where they begin in the text of the choice."""

    offset: int
    tokens: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    top: list[dict[str, float]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, step: Step, wanted: int) -> None:
        """Above `wanted`, the chosen token itself is in `top` as well."""
        self.tokens.append(step.token)
        self.values.append(step.log_probability)
        top = dict(step.alternatives[:wanted])
        self.top.append(top | {step.token: step.log_probability} if wanted else {})
        self.offsets.append(self.offset)
        self.offset += step.length

    def cut(self, length: int) -> None:
        """Leave out tokens of a stop sequence, which begin at the end of the text."""
        while self.offsets and self.offsets[-1] >= length:
            for values in (self.tokens, self.values, self.top, self.offsets):
                values.pop()

    def take(self) -> dict[str, Any]:
        """Those since the last time, in OpenAI's shape."""
        taken = {
            "tokens": self.tokens,
            "token_logprobs": self.values,
            "top_logprobs": self.top,
            "text_offset": self.offsets,
        }
        self.tokens, self.values, self.top, self.offsets = [], [], [], []
        return taken


class Completions:
    """POST /v1/completions."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def create(self, request: Request) -> Response:
        parameters = await read_json(request)
        asked = self._asked(parameters)
        request.scope["state"]["model"] = asked.served.name
        head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": now(),
            "model": asked.served.name,
        }
        if parameters.flag("stream"):
            chunks = self._chunks(asked, head, stream_options_of(parameters))
            return await EventStream.of(chunks, error_event)
        if "stream_options" in parameters:
            raise ParameterError("stream_options needs stream; set it to true", "stream_options")
        found = await self._whole(asked)
        choices = [choice for choice, _ in found]
        tokens = sum(count for _, count in found)
        read = await tokens_in(self.engine, asked.served, asked.prompts)
        return json_response({**head, "choices": choices, "usage": usage(read, tokens)})

    def _asked(self, asked: Parameters) -> Asked:
        served = self.engine.catalogue.find(asked.text("model"))
        if served.task != "language_modeling" or served.takes_audio:
            raise BadRequest(
                f"{served.name} is no language model (task: language_modeling), so it completes "
                f"no prompts; try /v1/chat/completions"
            )
        asked.refuse_others(KNOWN, served.name)
        limits = self.engine.limits
        prompts = _prompts(asked)
        logprobs = asked.whole("logprobs", None, 0, MAX_LOGPROBS)
        settings = choices_of(asked, limits, sampled=True, logprobs=logprobs is not None)
        n = len(settings)
        if (asked.whole("best_of", n, 1) or n) != n:
            raise ParameterError(f"best_of is not supported, unless it equals n ({n})", "best_of")
        default = served.model.recipe.decode.max_extra
        echo = asked.flag("echo")
        # Without a new token it is the log-probabilities of the prompt that are wanted.
        minimum = 0 if echo and logprobs is not None else 1
        maximum = asked.whole("max_tokens", default, minimum, limits.length)
        maximum = default if maximum is None else maximum
        self.engine.check(served, prompts, n, **({"max_length": maximum} if maximum else {}))
        return Asked(
            served,
            prompts,
            n,
            maximum,
            stops_of(asked, limits),
            echo,
            logprobs,
            settings,
        )

    def _steps(self, asked: Asked, prompt: str, settings: dict[str, Any]) -> AsyncIterator[Step]:
        return generate(
            self.engine,
            asked.served,
            prompt,
            asked.maximum,
            asked.stops,
            asked.logprobs or 0,
            **settings,
        )

    async def _whole(self, asked: Asked) -> list[tuple[dict[str, Any], int]]:
        """Every choice, with the number of its tokens."""
        if asked.by_beam or (asked.n == 1 and not asked.stops and asked.logprobs is None):
            return await self._at_once(asked)
        return await gather(*(self._choice(asked, *one) for one in asked.choices))

    async def _at_once(self, asked: Asked) -> list[tuple[dict[str, Any], int]]:
        """All prompts in one batch."""
        steps = await self._best(asked)
        found = []
        for number, (prompt, of_one) in enumerate(zip(asked.prompts, steps, strict=True)):
            for index, step in enumerate(of_one, start=number * asked.n):
                text = prompt + step.text if asked.echo else step.text
                found.append((_choice(index, text, step.finish, None), step.tokens))
        return found

    async def _best(self, asked: Asked) -> list[list[Step]]:
        """The n best of each prompt, each in one step."""
        return await hypotheses(
            self.engine,
            asked.served,
            asked.prompts,
            asked.n,
            asked.maximum,
            asked.stops,
            **asked.settings[0],
        )

    async def _choice(
        self, asked: Asked, index: int, prompt: str, settings: dict[str, Any]
    ) -> tuple[dict[str, Any], int]:
        text = prompt if asked.echo else ""
        logprobs = None if asked.logprobs is None else Logprobs(0)
        if logprobs is not None and asked.echo:
            await self._echo(asked, prompt, logprobs)
        step = Step("", finish="length")
        if not asked.maximum:
            taken = None if logprobs is None else logprobs.take()
            return _choice(index, text, step.finish, taken), 0
        async for step in self._steps(asked, prompt, settings):
            text += step.text
            if logprobs is not None and step.finish is None:
                logprobs.add(step, asked.logprobs or 0)
        if logprobs is not None and asked.stops:
            logprobs.cut(len(text))
        taken = None if logprobs is None else logprobs.take()
        return _choice(index, text, step.finish, taken), step.tokens

    async def _echo(self, asked: Asked, prompt: str, logprobs: Logprobs) -> None:
        """The tokens of a prompt come first."""
        (scored,) = await self.engine.score_prompts(asked.served, [prompt], asked.logprobs or 0)
        columns = (scored.tokens, scored.log_probabilities, scored.top, scored.lengths)
        for token, value, top, length in zip(*columns, strict=True):
            others = [(shown(other), of_other) for other, of_other in top]
            logprobs.add(Step("", shown(token), value, others, length), asked.logprobs or 0)
        logprobs.offset = len(prompt)

    async def _chunks(
        self, asked: Asked, head: dict[str, Any], with_usage: bool
    ) -> AsyncIterator[bytes]:
        """Server-sent events: tokens of all choices, as they are generated."""
        logprobs = {index: Logprobs(0) for index, *_ in asked.choices}
        counts: dict[int, int] = {}
        lengths = {index: len(prompt) if asked.echo else 0 for index, prompt, _ in asked.choices}
        if asked.echo:
            for index, prompt, _ in asked.choices:
                echoed = None
                if asked.logprobs is not None:
                    await self._echo(asked, prompt, logprobs[index])
                    echoed = logprobs[index].take()
                logprobs[index].offset = len(prompt)
                finish = None if asked.maximum else "length"
                yield event({**head, "choices": [_choice(index, prompt, finish, echoed)]})
        if asked.by_beam:
            streams = {
                index: given(step)
                for number, of_one in enumerate(await self._best(asked))
                for index, step in enumerate(of_one, start=number * asked.n)
            }
        else:
            streams = {
                index: self._steps(asked, prompt, own)
                for index, prompt, own in asked.choices
                if asked.maximum
            }
        async for index, step in merge(streams):
            counts[index] = step.tokens
            lengths[index] += len(step.text)
            if step.finish is None:
                logprobs[index].add(step, asked.logprobs or 0)
            if step.text or step.finish:
                taken = None
                if asked.logprobs is not None:
                    if asked.stops and step.finish:
                        logprobs[index].cut(lengths[index])
                    taken = logprobs[index].take()
                choice = _choice(index, step.text, step.finish, taken)
                yield event({**head, "choices": [choice]} | ({"usage": None} if with_usage else {}))
        if with_usage:
            read = await tokens_in(self.engine, asked.served, asked.prompts)
            total = usage(read, sum(counts.values()))
            yield event({**head, "choices": [], "usage": total})
        yield DONE


def _prompts(asked: Parameters) -> list[str]:
    prompt = asked.get("prompt", "")
    if isinstance(prompt, list) and any(isinstance(one, int | list) for one in prompt):
        raise ParameterError("prompts of token ids are not supported; give texts", "prompt")
    found = asked.texts("prompt") if "prompt" in asked else [""]
    if not found:
        raise ParameterError("prompt is an empty list; give a text or a list of texts", "prompt")
    return found


def _choice(
    index: int, text: str, finish: str | None, logprobs: dict[str, Any] | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": finish, "logprobs": logprobs}
