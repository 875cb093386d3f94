"""The beam as a tree: which hypotheses were kept and pruned at each step, and why.

The search itself is unchanged. It calls a wrapped model that records every step: the prefixes that
it is called with are those that search has kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD, Tokens
from transduce.decoding.batch.decode import BatchDecoder
from transduce.decoding.output import Output
from transduce.decoding.search.greedy import Stepper, penalty
from transduce.inspection.figures import visible
from transduce.models.decoders import DecoderState
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.model import Model

Prefix = tuple[int, ...]
KEPT, ENDED, PRUNED, END_PRUNED, OPEN = "kept", "ended", "pruned", "end pruned", "open"


class Asked(NamedTuple):
    """One step of a search: its hypotheses, and each one's likeliest next tokens."""

    prefixes: list[Prefix]
    totals: list[float]
    """Their log-probabilities."""
    likeliest: list[list[tuple[int, float]]]


@dataclass
class Trace:
    """All steps of the search for one source; empty where search did not call the model's steps."""

    steps: list[Asked] = field(default_factory=list)
    size: int = 0
    length_penalty: float = 0.0


@contextmanager
def traced(model: Model) -> Iterator[Trace]:
    """Record the beam search for one source while it is entered."""
    trace = Trace()
    if not isinstance(model, GenerativeModel):
        yield trace
        return
    made = model._task

    def recorded(*given: Any, **named: Any) -> BatchDecoder:
        task = made(*given, **named)
        settings = task.settings
        if task.fast is not None or settings.draws or settings.groups > 1:
            return task
        trace.size = max(settings.beam or 1, settings.nbest)
        trace.length_penalty = settings.length_penalty or 0.0
        return replace(task, model=cast(Stepper, _Recording(task.model, trace)))

    vars(model)["_task"] = recorded
    try:
        yield trace
    finally:
        del vars(model)["_task"]


class _Recording:
    """A model that records its steps."""

    def __init__(self, model: Stepper, trace: Trace) -> None:
        self.model = model
        self.trace = trace

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> _Followed:
        return _Followed(self.model.start(source_BS, lengths_B))

    def step(self, tokens_B: Tensor, state: _Followed) -> tuple[Tensor, _Followed]:
        state.append(tokens_B.tolist())
        log_probs_BV, state.inner = self.model.step(tokens_B, state.inner)
        state.log_probs_BV = log_probs_BV.clone()  # search may write over them
        count = min(2 * self.trace.size + 2, log_probs_BV.shape[1])  # PAD and BEGIN do not count
        best = state.log_probs_BV.topk(count, dim=1)
        likeliest = [
            [(token, value) for token, value in zip(*row, strict=True) if token not in (PAD, BEGIN)]
            for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        self.trace.steps.append(Asked(list(state.prefixes), list(state.totals), likeliest))
        return log_probs_BV, state


@dataclass
class _Followed:
    """A decoder's state, and which hypotheses its rows are."""

    inner: DecoderState
    prefixes: list[Prefix] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    log_probs_BV: Tensor | None = None

    def append(self, tokens: list[int]) -> None:
        if self.log_probs_BV is None:  # BEGIN
            self.prefixes, self.totals = [()] * len(tokens), [0.0] * len(tokens)
            return
        self.totals = [
            total + float(self.log_probs_BV[row, token])
            for row, (total, token) in enumerate(zip(self.totals, tokens, strict=True))
        ]
        self.prefixes = [(*p, token) for p, token in zip(self.prefixes, tokens, strict=True)]

    def reorder(self, index_B: Tensor) -> None:
        self.inner.reorder(index_B)
        if self.log_probs_BV is not None:
            self.log_probs_BV = self.log_probs_BV[index_B]
            self.prefixes = [self.prefixes[row] for row in index_B.tolist()]
            self.totals = [self.totals[row] for row in index_B.tolist()]


def beam_tree(trace: Trace, nbest: Sequence[Output], tokens: Tokens) -> dict[str, Any] | None:
    """Nodes [parent, token, log-probability, fate, rank, score, place], the root first.

    rank: among the candidates of the step, from 1. score: of what has ended. place: in the n-best
    list, from 0; or None. None instead of a tree where there was no beam.
    """
    if trace.size < 2 or not trace.steps:
        return None
    nodes: list[list[Any]] = [[None, "", 0.0, KEPT, None, None, None]]
    index: dict[Prefix, int] = {(): 0}
    places = {(*output.ids, END): place for place, output in enumerate(nbest)}
    for number, asked in enumerate(trace.steps):
        following = trace.steps[number + 1].prefixes if number + 1 < len(trace.steps) else None
        still_open = 0
        for rank, (total, prefix, token) in enumerate(_candidates(asked, 2 * trace.size)):
            whole = (*prefix, token)
            if whole in index or prefix not in index:
                continue
            fate, score = PRUNED, None
            if token == END:
                fate = ENDED if rank < trace.size else END_PRUNED
                score = total / float(penalty(len(whole), trace.length_penalty))
            elif following is None:
                fate = OPEN if still_open < trace.size else PRUNED
                still_open += 1
            elif whole in following:
                fate = KEPT
            index[whole] = len(nodes)
            (piece,) = tokens.pieces([token])
            value = None if score is None else round(score, 4)
            about = [index[prefix], visible(piece), round(total, 4)]
            nodes.append([*about, fate, rank + 1, value, places.get(whole)])
    for place, output in enumerate(nbest):
        before = index.get(tuple(output.ids))
        if before is None or (*output.ids, END) in index:
            continue
        if len(output.tokens) > len(output.ids):  # at its limit, with an END that had to come
            about = [before, visible(output.tokens[-1]), round(output.log_probability, 4)]
            nodes.append([*about, ENDED, None, round(output.score, 4), place])
        else:  # cut off, as what never ends by itself
            nodes[before][5:] = [round(output.score, 4), place]
    return {"size": trace.size, "nodes": nodes}


def _candidates(asked: Asked, count: int) -> list[tuple[float, Prefix, int]]:
    """The ways to go on from a step, best first."""
    rows = dict(zip(asked.prefixes, zip(asked.totals, asked.likeliest, strict=True), strict=True))
    ways = [
        (total + value, prefix, token)
        for prefix, (total, likeliest) in rows.items()
        for token, value in likeliest
    ]
    return sorted(ways, key=lambda way: -way[0])[:count]
