"""Watch a run while it generates: each token as it is chosen, and sources that may be dropped.

model.run(sources, beam=1, observer=observer) calls the observer between the steps of its search;
the outputs are those of a run without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transduce.decoding.output import Output

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
