"""Watch a run while it generates: each token as it is chosen, and sources that may be dropped.

model.run(sources, beam=1, observer=observer) calls the observer between the steps of its search;
the outputs are those of a run without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from transduce.data.text.unicode import stable_prefix
from transduce.data.tokens.tokenizer import END
from transduce.decoding.batch.decode import BatchDecoder, Request
from transduce.decoding.constraints.constraint import NEG_INF
from transduce.decoding.output import Output
from transduce.decoding.search.continuous_batching import Job
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.search.observer import ChosenToken, SearchObserver
from transduce.models.call_context import CallContext

if TYPE_CHECKING:
    from transduce.tasks.generate import GenerativeModel

NO_OUTPUT = "no output was found that satisfies all constraints"


@dataclass(frozen=True)
class Watch:
    """What is shown of each token of a source."""

    alternatives: int = 0
    """How many of the most likely tokens at each step."""
    attention: bool = False
    """Attention to the source: costs one more pass of the network for each token."""


@dataclass(slots=True)
class TokenStep:
    """A token that was chosen for a source."""

    text: str
    """The text that it adds; empty while a character is incomplete, and at the end."""
    token: str
    log_probability: float
    alternatives: list[tuple[str, float]] = field(default_factory=list)
    """The most likely tokens at this step, with their log-probabilities."""
    attention: list[float] | None = None
    """Attention to each source token, the mean over layers and heads."""
    alternative_texts: list[str] = field(default_factory=list)
    """What each of the alternatives would have added to the text."""
    source_tokens: list[str] = field(default_factory=list)
    """With the first token, where attention is shown: what it is attention to."""
    last: bool = False
    """Whether it is END."""


class RunObserver:
    """The base class of observers; sources are numbered as they were given to `run`."""

    watched: Mapping[int, Watch] = {}
    """The sources whose tokens are shown; greedy search or sampling of a single output only."""

    def cancelled(self) -> Collection[int]:
        """The sources whose outputs are no longer needed; asked at each step."""
        return ()

    def drops(self, source: int) -> bool:
        """Whether the output of a source is no longer needed."""
        return source in self.cancelled()

    def token(self, source: int, step: TokenStep) -> None:
        """A token was chosen for one of the watched sources."""


class PartObserver(RunObserver):
    """Passes on what concerns some of the sources: source n here is `sources[n]` there."""

    def __init__(
        self, whole: RunObserver, sources: Sequence[int], hidden: Collection[int] = ()
    ) -> None:
        """hidden: sources, as numbered there, whose tokens are not shown."""
        self.whole, self.sources = whole, sources
        self.watched = {
            place: whole.watched[source]
            for place, source in enumerate(sources)
            if source in whole.watched and source not in hidden
        }

    def cancelled(self) -> Collection[int]:
        cancelled = self.whole.cancelled()
        if not cancelled:
            return ()
        return [place for place, source in enumerate(self.sources) if source in cancelled]

    def token(self, source: int, step: TokenStep) -> None:
        self.whole.token(self.sources[source], step)


class SourceFeed(Protocol):
    """Sources that arrive while others are being decoded, under numbers of the feed's own."""

    def more(self) -> Sequence[tuple[int, str]]:
        """The sources that have arrived since it was last asked."""
        ...

    def cancelled(self) -> Collection[int]:
        """The sources whose outputs are no longer needed."""
        ...

    def done(self, found: list[tuple[int, Output]]) -> None:
        """The outputs of some sources."""
        ...


class FeedOfJobs:
    """Turns the sources of a feed into jobs of the search, and hypotheses into outputs."""

    def __init__(self, model: GenerativeModel, task: BatchDecoder, feed: SourceFeed) -> None:
        self.model, self.task, self.feed = model, task, feed
        self.sources: dict[int, tuple[str, list[int], str, int]] = {}

    def more(self) -> list[tuple[int, Job]]:
        arrived = self.feed.more()
        if not arrived:
            return []
        encoded, warnings = self.model._encode([source for _, source in arrived])
        jobs, empty = [], []
        for place, ((number, source), ids) in enumerate(zip(arrived, encoded, strict=True)):
            if len(ids):
                job = self.task.job(Request(ids))
                self.sources[number] = (source, ids, warnings.get(place, ""), job.limit)
                jobs.append((number, job))
            else:
                empty.append((number, Output("", 0.0)))
        if empty:
            self.feed.done(empty)
        return jobs

    def cancelled(self) -> Collection[int]:
        return self.feed.cancelled()

    def done(self, found: list[tuple[int, list[Hypothesis]]]) -> None:
        outputs = []
        for number, hypotheses in found:
            source, ids, warning, limit = self.sources.pop(number)
            output = self.model._output(source, ids, hypotheses) if hypotheses else None
            if output is None:
                output = Output("", NEG_INF, warning=NO_OUTPUT)
            else:
                output.note_length(limit)
                output.warning = warning or output.warning
            outputs.append((number, output))
        self.feed.done(outputs)


class IncrementalText:
    """The text of an output that grows by tokens, in pieces that never change again."""

    def __init__(self, model: GenerativeModel, source: str, ids: list[int]) -> None:
        self.model, self.source, self.ids = model, source, ids
        self.written: list[int] = []
        self.shown = ""

    def add(self, token: int) -> str:
        """The text that a token adds; empty while a character is incomplete."""
        self.written.append(token)
        text = self.model._text(self.source, self.ids, self.written)
        if self.model.target_tokens.form is not None:
            text = stable_prefix(text)  # a combining accent may follow the last letter
        # An incomplete multi-byte character: wait for the rest.
        if text.endswith("\ufffd"):
            return ""
        return self._new(text)

    def would_add(self, token: int) -> str:
        """The text that a token would add; empty where that is not a whole character."""
        text = self.model._text(self.source, self.ids, [*self.written, token])
        if text.endswith("\ufffd") or not text.startswith(self.shown):
            return ""
        return text[len(self.shown) :]

    def rest(self) -> str:
        """What was held back, at the end."""
        return self._new(self.model._text(self.source, self.ids, self.written))

    def _new(self, text: str) -> str:
        if text == self.shown or not text.startswith(self.shown):
            return ""
        new, self.shown = text[len(self.shown) :], text
        return new


class TokenSteps(SearchObserver):
    """Shows the tokens of a search as text to the observer of a run."""

    def __init__(
        self,
        model: GenerativeModel,
        observer: RunObserver,
        sources: Sequence[str],
        encoded: Sequence[list[int]],
        context: CallContext,
    ) -> None:
        self.model, self.observer, self.context = model, observer, context
        self.wanted = {place: watch.alternatives for place, watch in observer.watched.items()}
        self.encoded = encoded
        self.texts = {
            place: IncrementalText(model, sources[place], encoded[place]) for place in self.wanted
        }

    def cancelled(self) -> Collection[int]:
        return self.observer.cancelled()

    def chose(self, source: int, chosen: ChosenToken) -> None:
        text, pieces = self.texts[source], self.model.target_tokens.pieces
        attention, source_tokens = None, []
        if self.observer.watched[source].attention:
            so_far = Hypothesis(list(text.written), 0.0, 0.0)
            maps = self.model._attention([self.encoded[source]], [[so_far]], self.context)
            if 0 in maps:
                attention = maps[0].mean(axis=(0, 1), dtype=np.float64)[-1].round(4).tolist()
                if not text.written:
                    source_tokens = self.model._pieces(self.encoded[source])
        last = chosen.token == END
        numbers = [number for number, _ in chosen.alternatives]
        values = [value for _, value in chosen.alternatives]
        texts = ["" if number == END else text.would_add(number) for number in numbers]
        self.observer.token(
            source,
            TokenStep(
                text=text.rest() if last else text.add(chosen.token),
                token=pieces([chosen.token])[0],
                log_probability=chosen.log_probability,
                alternatives=list(zip(pieces(numbers), values, strict=True)),
                attention=attention,
                last=last,
                alternative_texts=texts,
                source_tokens=source_tokens,
            ),
        )
