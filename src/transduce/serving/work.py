"""How much work a request is, and how fast it is done: for admission, batches and Retry-After."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from transduce.serving.batch import Batch
from transduce.serving.errors import BadRequest
from transduce.serving.jobs import Plan, Result, longest_wording
from transduce.serving.limits import Limits
from transduce.serving.recordings import Recorded
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
        self,
        inputs: Sequence[Any],
        plan: Plan,
        constraints: Mapping[str, list[Any]],
        limits: Limits,
    ) -> list[int]:
        """The work of each input, in whole numbers, so that what is added to the queue and what is
        taken from it are the same. Raises BadRequest and TooLarge."""
        count = len(inputs)
        limits.check("texts", count, f"the request has {count:,} inputs")
        limits.check(
            "outputs", count * plan.nbest, f"the request asks for {count * plan.nbest:,} outputs"
        )
        if plan.served.takes_audio:
            sizes = [1 + math.ceil(_seconds(one, limits) * STATES_A_SECOND) for one in inputs]
        else:
            sizes = [self.tokens(text, limits) for text in inputs]
        for name in ("prefix", "target"):
            if name in constraints:
                pairs = zip(sizes, constraints[name], strict=True)
                sizes = [size + self.tokens(text, limits) for size, text in pairs]
        widths = [plan.width] * count
        if "include" in constraints:  # a place of the beam for each of their tokens
            phrases = (
                sum(self.tokens(longest_wording(one), limits) for one in of)
                for of in constraints["include"]
            )
            widths = [max(plan.width, more) for more in phrases]
        return [max(size, plan.minimum) * width for size, width in zip(sizes, widths, strict=True)]

    def tokens(self, text: Any, limits: Limits) -> int:
        """The tokens of a text, about. Raises BadRequest and TooLarge."""
        if not isinstance(text, str):
            raise BadRequest(f"an input must be text, not {type(text).__name__}")
        limits.check("characters", len(text), f"an input has {len(text):,} characters")
        return 1 + math.ceil(len(text) * self.ratio)

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

    Work enters the queue (`queued`), and is taken out of it as a batch. It is counted in whole
    numbers: after the last request it is exactly 0 again.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.speed = limits, Speed(limits.batch_tokens)
        self.queued = 0
        """The work that waits."""
        self._decoded = (0, 0.0)
        """The work of the batch that is being decoded, and when it began: one value, as another
        thread reads it."""

    def decodes(self, cost: int) -> None:
        """A batch of so much work is being decoded from now on; 0: none is."""
        self._decoded = (cost, time.monotonic())

    @property
    def wait(self) -> float:
        """Seconds until all that waits is taken."""
        return self._wait(self.queued)

    def _wait(self, ahead: int) -> float:
        """The rest of the batch that is being decoded, and so much work."""
        cost, since = self._decoded
        rest = self.speed.seconds(cost) - (time.monotonic() - since)
        return max(0.0, rest) + self.speed.seconds(ahead)

    def is_too_much(self, cost: int) -> bool:
        """Whether a request takes longer than any may wait, were it alone. The work of one batch
        never is: otherwise a speed that was measured too low would never be corrected."""
        if cost <= self.limits.batch_tokens:
            return False
        if not self.speed.known:
            return cost > self.limits.queue_tokens
        return self.speed.seconds(cost) > self.limits.queue_seconds

    def excess(self, cost: int, ahead: int) -> float:
        """How much less work would have to wait for a request of this cost; 0: it may come in.
        ahead: the work that is done before it is."""
        if not self.speed.known:
            over = ahead + cost - self.limits.queue_tokens
            return over if ahead and over > 0 else 0.0
        # What comes before it, and then its own batches, must be done within the time.
        own = self.limits.longest_batch
        if cost > self.limits.batch_tokens:
            own = max(own, self.speed.seconds(cost))
        late = SLOWER * self._wait(ahead) + own - self.limits.queue_seconds
        return late * self.speed.rate if late > 0 else 0.0

    def capacity(self, on_gpu: bool) -> float:
        """The work that one batch may have."""
        if on_gpu:
            return self.limits.batch_tokens_on_gpu
        if not self.speed.known:
            return self.limits.batch_tokens
        return min(self.limits.batch_tokens, self.limits.longest_batch * self.speed.rate)


def _seconds(source: Any, limits: Limits) -> float:
    """The length of audio. A text is not taken for a path: clients may not name our files."""
    if not isinstance(source, Recorded):
        raise BadRequest(f"this model takes audio, not {type(source).__name__}; send an audio file")
    limits.check("audio_seconds", source.seconds, f"a recording has {source.seconds:,.0f} s")
    return source.seconds
