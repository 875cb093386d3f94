"""Completions of prompts by language models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from transduce.serving.engine import Engine
from transduce.serving.errors import BadRequest
from transduce.serving.jobs import PromptScore
from transduce.serving.models import Served
from transduce.serving.protocols.openai.choices import Choice, respond, usage_is_wanted
from transduce.serving.protocols.openai.generation import (
    Step,
    choices_of,
    generate,
    hypotheses,
    only,
    shown,
    stops_of,
)
from transduce.serving.protocols.openai.shapes import HARMLESS, new_id, now
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


class Completion(Choice):
    """The text of a completion; with log-probabilities, as many alternatives at each token."""

    def __init__(
        self, index: int, source: AsyncIterator[Step], stops: bool, alternatives: int | None
    ) -> None:
        super().__init__(index, source, stops)
        self.alternatives = alternatives

    def echo(self, prompt: str, scored: PromptScore | None) -> None:
        """The prompt comes first, with its tokens where they are scored."""
        columns = (
            (scored.tokens, scored.log_probabilities, scored.top, scored.lengths) if scored else ()
        )
        for token, value, top, length in zip(*columns, strict=True):
            others = [(shown(other), of_other) for other, of_other in top]
            self.add(Step("", shown(token), value, others, length))
        self.text = prompt
        self.length = self.offset = len(prompt)

    def chunk(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "text": self.text,
            "finish_reason": self.finish,
            "logprobs": None if self.alternatives is None else self._logprobs(self.alternatives),
        }

    def whole(self) -> dict[str, Any]:
        return self.chunk()

    def _logprobs(self, alternatives: int) -> dict[str, Any]:
        """Where there are alternatives, the chosen token itself is among them as well."""
        steps = [step for _, step in self.steps]
        top = [
            dict(step.alternatives[:alternatives]) | {step.token: step.log_probability}
            if alternatives
            else {}
            for step in steps
        ]
        return {
            "tokens": [step.token for step in steps],
            "token_logprobs": [step.log_probability for step in steps],
            "top_logprobs": top,
            "text_offset": [offset for offset, _ in self.steps],
        }


class Completions:
    """POST /v1/completions."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def create(self, request: Request) -> Response:
        parameters = await read_json(request)
        asked = self._asked(parameters)
        stream, with_usage = parameters.flag("stream"), usage_is_wanted(parameters)
        request.scope["state"]["model"] = asked.served.name
        head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": now(),
            "model": asked.served.name,
        }
        choices = await self._choices(asked, stream)
        return await respond(
            self.engine,
            asked.served,
            asked.prompts,
            choices,
            head,
            stream=stream,
            with_usage=with_usage,
        )

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

    async def _choices(self, asked: Asked, stream: bool) -> list[Completion]:
        """Each with the stream of its tokens; the prompts are in them already, if echoed."""
        streams = await self._streams(asked, stream)
        stops = bool(asked.stops)
        choices = {
            index: Completion(index, steps, stops, asked.logprobs)
            for index, steps in streams.items()
        }
        if asked.echo:
            scores: Sequence[PromptScore | None] = [None] * len(asked.prompts)
            if asked.logprobs is not None:
                scores = await self.engine.score_prompts(
                    asked.served, asked.prompts, asked.logprobs
                )
            for index, choice in choices.items():
                number = index // asked.n
                choice.echo(asked.prompts[number], scores[number])
        return list(choices.values())

    async def _streams(self, asked: Asked, stream: bool) -> dict[int, AsyncIterator[Step]]:
        """One for each choice. The n best of beam search, and what needs no tokens one by one, are
        found for all prompts in one batch."""
        if not asked.maximum:
            return {index: only(Step("", finish="length")) for index, *_ in asked.choices}
        plain = asked.n == 1 and not asked.stops and asked.logprobs is None
        if asked.by_beam or (plain and not stream):
            best = await hypotheses(
                self.engine,
                asked.served,
                asked.prompts,
                asked.n,
                asked.maximum,
                asked.stops,
                **asked.settings[0],
            )
            return {
                index: only(step)
                for number, of_one in enumerate(best)
                for index, step in enumerate(of_one, start=number * asked.n)
            }
        return {
            index: generate(
                self.engine,
                asked.served,
                prompt,
                asked.maximum,
                asked.stops,
                asked.logprobs or 0,
                **own,
            )
            for index, prompt, own in asked.choices
        }


def _prompts(asked: Parameters) -> list[str]:
    prompt = asked.get("prompt", "")
    if isinstance(prompt, list) and any(isinstance(one, int | list) for one in prompt):
        raise ParameterError("prompts of token ids are not supported; give texts", "prompt")
    found = asked.texts("prompt") if "prompt" in asked else [""]
    if not found:
        raise ParameterError("prompt is an empty list; give a text or a list of texts", "prompt")
    return found
