"""Text token by token: what completions and chat are made of."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from transduce.data.tokens.tokenizer import END, SPECIALS
from transduce.decoding.output import Output
from transduce.serving.engine import Engine
from transduce.serving.jobs import LastStep
from transduce.serving.limits import Limits
from transduce.serving.models import Served
from transduce.serving.protocols.answers import closing
from transduce.serving.protocols.parameters import ParameterError, Parameters
from transduce.serving.protocols.translation import apply

T = TypeVar("T")
MAX_ALTERNATIVES = 20


@dataclass
class Step:
    """A token as it is generated: the text that can be shown by now, and its log-probability."""

    text: str
    token: str = ""
    log_probability: float = 0.0
    alternatives: list[tuple[str, float]] = field(default_factory=list)
    length: int = 0
    """The characters that the token adds, shown by now or not."""
    finish: str | None = None
    """At the end: "stop" (the model or a stop sequence ended it) or "length"."""
    tokens: int = 0
    """The number of tokens so far."""


def sampling_settings(asked: Parameters, sampled: bool, index: int = 0) -> dict[str, Any]:
    """temperature, top_p and seed as settings of a run; `sampled`: whether sampling is the default.

    Without a seed each request draws another. Choice n of several has the seed + n.
    """
    temperature = asked.number("temperature", 1.0 if sampled else 0.0, 0.0, 2.0)
    top_p = asked.number("top_p", 1.0, 0.0, 1.0)
    seed = asked.whole("seed", None, -(2**62))
    if temperature == 0 or top_p == 0:
        return {"beam": 1} if sampled or "temperature" in asked else {}
    drawn = secrets.randbelow(2**31) if seed is None else seed % 2**62
    found: dict[str, Any] = {"sample": True, "seed": drawn + index}
    found |= {"temperature": temperature} if temperature != 1 else {}
    return found | ({"top_p": top_p} if top_p != 1 else {})


def stops_of(asked: Parameters, limits: Limits) -> list[str]:
    """The stop sequences. Raises ParameterError and TooLarge."""
    stops = [stop for stop in (asked.texts("stop") if "stop" in asked else []) if stop]
    if len(stops) > limits.stops:
        raise ParameterError(
            f"there are {len(stops):,} stop sequences, above {limits.stops}", "stop"
        )
    longest = max(map(len, stops), default=0)
    limits.check("stop_characters", longest, f"a stop sequence has {longest:,} characters")
    return stops


def choices_of(
    asked: Parameters, limits: Limits, sampled: bool, logprobs: bool
) -> list[dict[str, Any]]:
    """The settings of each of the n choices. Raises ParameterError."""
    n = asked.whole("n", 1, 1, limits.nbest) or 1
    settings = [sampling_settings(asked, sampled, index) for index in range(n)]
    if n > 1 and logprobs and not settings[0].get("sample"):
        raise ParameterError(
            "n above 1 with logprobs needs a temperature above 0; leave out one of them", "n"
        )
    return settings


class StopFinder:
    """Finds stop sequences in a text that grows, and holds back what may be the start of one.

    Knuth, Morris and Pratt 1977, https://doi.org/10.1137/0206024: it looks at each character once
    for each of them.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.held, self.found = "", False
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)
        """How much of each is at the end of the text."""

    def add(self, text: str) -> str:
        """The text that can be shown by now."""
        whole = self.held + text
        places = []
        for number, (stop, borders) in enumerate(self._stops):
            matched = self._matched[number]
            for place, character in enumerate(text, start=len(self.held) + 1):
                while matched and stop[matched] != character:
                    matched = borders[matched - 1]
                matched += stop[matched] == character
                if matched == len(stop):
                    places.append(place - matched)
                    break
            self._matched[number] = matched
        if places:
            self.held, self.found = "", True
            return whole[: min(places)]
        keep = max(self._matched, default=0)
        self.held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def rest(self) -> str:
        """What was held back, at the end."""
        return self.held


def _borders(stop: str) -> list[int]:
    """For each beginning of a text, the length of its longest other beginning that it ends with."""
    found = [0] * len(stop)
    length = 0
    for place in range(1, len(stop)):
        while length and stop[length] != stop[place]:
            length = found[length - 1]
        length += stop[length] == stop[place]
        found[place] = length
    return found


async def generate(
    engine: Engine,
    served: Served,
    source: str,
    maximum: int | None,
    stops: Sequence[str] = (),
    alternatives: int = 0,
    **settings: Any,
) -> AsyncIterator[Step]:
    """The tokens of one output; the last step has `finish`. A prompt is not repeated."""
    finder = StopFinder(stops)
    prompt = source if served.task == "language_modeling" else ""
    limits: dict[str, Any] = {} if maximum is None else {"max_length": maximum}
    count, held = 0, ""
    events = engine.stream(served, source, alternatives=alternatives, **limits, **settings)
    async with closing(events):
        async for found in events:
            text = found.text
            if prompt and text:  # the first text begins with the prompt
                text, prompt = text[len(prompt) :] if text.startswith(prompt) else text, ""
            if isinstance(found, LastStep):
                count = len(found.output.ids)
                shown_text = finder.add(held + text) + finder.rest()
                finish = "stop" if finder.found else finish_of(found.output)
                yield Step(shown_text, finish=finish, tokens=count)
                return
            if found.token == SPECIALS[END]:  # the last event follows
                held = text
                continue
            count += 1
            yield Step(
                finder.add(text),
                shown(found.token),
                found.log_probability,
                [(shown(token), value) for token, value in found.alternatives],
                length=len(text),
                tokens=count,
            )
            if finder.found:
                yield Step("", finish="stop", tokens=count)
                return


def finish_of(output: Output) -> str:
    return "length" if output.reached_max_length else "stop"


async def hypotheses(
    engine: Engine,
    served: Served,
    sources: Sequence[str],
    n: int,
    maximum: int | None,
    stops: Sequence[str],
    **settings: Any,
) -> list[list[Step]]:
    """The n best outputs of each source, each as its last step; of beam search, if n is above 1.

    There are fewer where the search has found fewer.
    """
    if n > 1:
        settings |= {"nbest": n, "beam": max(n, served.model.recipe.decode.beam)}
    settings |= {} if maximum is None else {"max_length": maximum}
    outputs = await engine.run(served, sources, **settings)
    found = []
    for source, output in zip(sources, outputs, strict=True):
        skipped = (
            len(source) if served.task == "language_modeling" else 0
        )  # the prompt is not repeated
        best = output.alternatives[:n] or [output]
        found.append([_ended(one, one.text[skipped:], stops) for one in best])
    return found


def _ended(output: Output, text: str, stops: Sequence[str]) -> Step:
    finder = StopFinder(stops)
    shown_text = finder.add(text) + finder.rest()
    finish = "stop" if finder.found else finish_of(output)
    return Step(shown_text, finish=finish, tokens=len(output.ids))


async def only(step: Step) -> AsyncIterator[Step]:
    """A stream of one step."""
    yield step


def shown(token: str) -> str:
    """A token as text: vocabularies write spaces as ▁."""
    return token.replace("▁", " ")


async def tokens_in(engine: Engine, served: Served, texts: Sequence[str]) -> int:
    """The tokens of texts together."""
    encode = served.model.source_tokens.encode
    return sum(await apply(engine, lambda text: len(encode(text)), texts, sum(map(len, texts))))


async def gather(*tasks: Any) -> list[Any]:
    """The results in order; where one fails, the others are cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one) for one in tasks]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [one.result() for one in running]


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
