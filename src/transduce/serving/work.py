"""How much work a request is, and how fast it is done: for admission, batches and Retry-After."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transduce.data.audio.read import audio_facts
from transduce.errors import DataError
from transduce.serving.batch import Batch
from transduce.serving.errors import BadRequest, TooLarge
from transduce.serving.jobs import Result
from transduce.serving.limits import Limits
from transduce.serving.models import Served
from transduce.tasks.model import Model

STATES_A_SECOND = 25.0  # encoder states of audio, about
FIRST_GUESS = {"character": 1.0, "byte": 1.2, "subword": 0.3, "word": 0.2, "symbol": 0.5}
NEW = 0.1  # the share of a new measurement in the running mean


class WorkEstimate:
    """Estimates source tokens from the number of characters, by a ratio that it learns."""

    def __init__(self, tokens_a_character: float) -> None:
        self.ratio = tokens_a_character

    @classmethod
    def of(cls, model: Model) -> WorkEstimate:
        sides = model.recipe.data.tokens
        tokens = sides.both or sides.source
        return cls(FIRST_GUESS.get(tokens.level if tokens else "", 0.3))

    def costs(
        self, inputs: Sequence[Any], hypotheses: int, served: Served, limits: Limits
    ) -> list[float]:
        """The work of each input. Raises BadRequest and TooLarge."""
        if len(inputs) > limits.texts:
            raise TooLarge(
                f"the request has {len(inputs):,} inputs; the maximum is {limits.texts:,}"
            )
        if served.takes_audio:
            return [(1 + _seconds(one) * STATES_A_SECOND) * hypotheses for one in inputs]
        for text in inputs:
            if not isinstance(text, str):
                raise BadRequest(f"an input must be text, not {type(text).__name__}")
            if len(text) > limits.characters:
                raise TooLarge(
                    f"an input has {len(text):,} characters; the maximum is {limits.characters:,}"
                )
        return [(1 + len(text) * self.ratio) * hypotheses for text in inputs]

    def learn(self, batch: Batch, outputs: Sequence[Result]) -> None:
        """Adapt the ratio to a batch that was decoded."""
        if batch.plan.served.takes_audio:
            return
        tokens = sum(len(output.source_tokens) for output in outputs)
        characters = sum(len(job.inputs[number]) for job, number in batch.entries)
        if tokens and characters:
            self.ratio += NEW * (tokens / characters - self.ratio)


class Speed:
    """The work done in a second, over the last batches.

    A batch counts by its size: single requests are slower for their size, and say little about
    the full batches that a queue is decoded in.
    """

    def __init__(self, batch_tokens: int) -> None:
        self.batch_tokens = batch_tokens
        self._cost = self._seconds = 0.0

    def add(self, cost: float, seconds: float) -> None:
        kept = 1.0 - min(0.5, NEW * cost / self.batch_tokens)
        self._cost = kept * self._cost + cost
        self._seconds = kept * self._seconds + max(seconds, 1e-6)

    @property
    def known(self) -> bool:
        """Whether enough was decoded to rely on it."""
        return self._cost >= self.batch_tokens

    @property
    def rate(self) -> float:
        return self._cost / self._seconds if self._seconds else 0.0

    def seconds(self, cost: float) -> float:
        """The time that work takes; 0 before the first measurement."""
        return cost / self.rate if self._seconds else 0.0


def _seconds(source: Any) -> float:
    """The length of audio. A text is not taken for a path: clients may not name our files."""
    if isinstance(source, Path):
        try:
            return audio_facts(source).seconds
        except DataError:
            return 0.0  # the output will say what is wrong
    if isinstance(source, np.ndarray):
        return len(source) / 16_000
    raise BadRequest(f"this model takes audio, not {type(source).__name__}; send an audio file")
