"""Text token by token: what completions and chat are made of."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from transduce.data.tokens.tokenizer import END, SPECIALS
from transduce.serving.engine import Engine
from transduce.serving.models import Served
from transduce.serving.protocols.answers import closing
from transduce.serving.protocols.parameters import ParameterError, Parameters

MAX_STOPS = 4
MAX_CHOICES = 128
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


def stops_of(asked: Parameters) -> list[str]:
    stops = [stop for stop in (asked.texts("stop") if "stop" in asked else []) if stop]
    if len(stops) > MAX_STOPS:
        raise ParameterError(f"there are {len(stops)} stop sequences, above {MAX_STOPS}", "stop")
    return stops


class StopFinder:
    """Finds stop sequences in a text that grows, and holds back what may be the start of one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops, self.held, self.found = stops, "", False

    def add(self, text: str) -> str:
        """The text that can be shown by now."""
        whole = self.held + text
        places = [place for stop in self.stops if (place := whole.find(stop)) >= 0]
        if places:
            self.held, self.found = "", True
            return whole[: min(places)]
        keep = max(
            (n for stop in self.stops for n in range(1, len(stop)) if whole.endswith(stop[:n])),
            default=0,
        )
        shown = whole[: len(whole) - keep]
        self.held = whole[len(whole) - keep :]
        return shown

    def rest(self) -> str:
        """What was held back, at the end."""
        return self.held


async def generate(
    engine: Engine,
    served: Served,
    source: str,
    most: int | None,
    stops: Sequence[str] = (),
    alternatives: int = 0,
    **settings: Any,
) -> AsyncIterator[Step]:
    """The tokens of one output; the last step has `finish`. A prompt is not repeated."""
    finder = StopFinder(stops)
    prompt = source if served.task == "continue" else ""
    limits: dict[str, Any] = {} if most is None else {"max_length": most}
    count, held = 0, ""
    events = engine.stream(served, source, alternatives=alternatives, **limits, **settings)
    async with closing(events):
        async for found in events:
            text = found.text
            if prompt and text:  # the first text begins with the prompt
                text, prompt = text[len(prompt) :] if text.startswith(prompt) else text, ""
            if found.output is not None:
                count = len(found.output.ids)
                finish = "length" if most is not None and count >= most else "stop"
                yield Step(finder.add(held + text) + finder.rest(), finish=finish, tokens=count)
                return
            if found.token == SPECIALS[END]:  # the last event follows
                held = text
                continue
            count += 1
            yield Step(
                finder.add(text),
                shown(found.token),
                found.score or 0.0,
                [(shown(token), value) for token, value in found.alternatives],
                length=len(text),
                tokens=count,
            )
            if finder.found:
                yield Step("", finish="stop", tokens=count)
                return


def shown(token: str) -> str:
    """A token as text: vocabularies write spaces as ▁."""
    return token.replace("▁", " ")


def tokens_in(served: Served, text: str) -> int:
    return len(served.model.source_tokens.encode(text))
