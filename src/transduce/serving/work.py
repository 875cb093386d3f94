"""How much work a request is, and how fast it is done: for admission, batches and Retry-After."""

from __future__ import annotations

import time
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
SLOWER = 1.3  # admission allows for a speed that falls so much below the one measured


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


class Admission:
    """Decides by the work that waits, and the time it will take, whether more may come in.

    Work enters the queue (`queued`), and is taken out of it as a batch.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.speed = limits, Speed(limits.batch_tokens)
        self.queued = 0.0
        """The work that waits."""
        self._decoded = (0.0, 0.0)
        """The work of the batch that is being decoded, and when it began: one value, as another
        thread reads it."""

    def decodes(self, cost: float) -> None:
        """A batch of so much work is being decoded from now on; 0: none is."""
        self._decoded = (cost, time.monotonic())

    @property
    def wait(self) -> float:
        """Seconds until what comes now is taken: the rest of the batch that is being decoded, and
        all that waits."""
        cost, since = self._decoded
        rest = self.speed.seconds(cost) - (time.monotonic() - since)
        return max(0.0, rest) + self.speed.seconds(self.queued)

    def excess(self, cost: float) -> float:
        """How much less work would have to wait for a request of this cost; 0: it may come in."""
        # One request alone is always admitted: its own limits bound it.
        if self.queued and (over := self.queued + cost - self.limits.queue_tokens) > 0:
            return over
        # What waits, and then its own batch, must be done within the time.
        late = SLOWER * self.wait + self.limits.longest_batch - self.limits.queue_seconds
        return late * self.speed.rate if self.speed.known and late > 0 else 0.0

    def room(self, on_gpu: bool) -> float:
        """The work that one batch may have."""
        if on_gpu:
            return self.limits.batch_tokens_on_gpu
        if not self.speed.known:
            return self.limits.batch_tokens
        return min(self.limits.batch_tokens, self.limits.longest_batch * self.speed.rate)


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
