"""Watch a search between its steps: the tokens it chooses, and sources that it may drop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import PAD
from transduce.decoding.constraints.constraint import NEG_INF


@dataclass(slots=True)
class ChosenToken:
    """A token that greedy search or sampling has just chosen for one source."""

    token: int
    log_probability: float
    alternatives: list[tuple[int, float]] = field(default_factory=list)
    """The most likely tokens at this step, with their log-probabilities."""


class SearchObserver:
    """Called between the steps of a search; sources are numbered as they were given to it."""

    wanted: Mapping[int, int] = {}
    """The sources whose tokens are shown as they are chosen, with the number of alternatives."""

    def cancelled(self) -> Collection[int]:
        """The sources whose outputs are no longer needed. Asked at each step: it must be quick."""
        return ()

    def chose(self, source: int, chosen: ChosenToken) -> None:
        """A source has its next token; called only for those in `wanted`, without a beam."""

    def of(self, sources: Sequence[int]) -> SearchObserver:
        """The same, for a search over some of the sources only."""
        return _OfSome(self, sources)

    # ------------------------------------------------------------------------ for the search

    def gone(self, source_R: Tensor) -> Tensor | None:
        """Which rows belong to cancelled sources; None: none at all."""
        cancelled = self.cancelled()
        if not cancelled:
            return None
        numbers = torch.tensor(sorted(cancelled), device=source_R.device)
        gone_R = torch.isin(source_R, numbers)
        return gone_R if bool(gone_R.any()) else None

    def show(
        self, source_R: Tensor, tokens_R: Tensor, log_probs_R: Tensor, log_probs_RV: Tensor
    ) -> None:
        """Pass on the tokens of this step."""
        if not self.wanted:
            return
        rows = zip(source_R.tolist(), tokens_R.tolist(), log_probs_R.tolist(), strict=True)
        for row, (source, token, log_probability) in enumerate(rows):
            if source not in self.wanted or token == PAD or not log_probability > NEG_INF:
                continue
            alternatives: list[tuple[int, float]] = []
            if count := min(self.wanted[source], log_probs_RV.shape[1]):
                found_C, ids_C = log_probs_RV[row].topk(count)
                pairs = zip(ids_C.tolist(), found_C.tolist(), strict=True)
                alternatives = [(number, value) for number, value in pairs if value > NEG_INF]
            self.chose(source, ChosenToken(token, log_probability, alternatives))


class _OfSome(SearchObserver):
    def __init__(self, whole: SearchObserver, sources: Sequence[int]) -> None:
        self.whole, self.sources = whole, sources
        self.wanted = {
            place: whole.wanted[source]
            for place, source in enumerate(sources)
            if source in whole.wanted
        }

    def cancelled(self) -> Collection[int]:
        cancelled = self.whole.cancelled()
        if not cancelled:
            return ()
        return [place for place, source in enumerate(self.sources) if source in cancelled]

    def chose(self, source: int, chosen: ChosenToken) -> None:
        self.whole.chose(self.sources[source], chosen)
