"""The beam as a tree: which hypotheses were kept and pruned at each step, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.batch.decode import BatchDecoder, Request
from transduce.decoding.constraints.constraint import (
    NEG_INF,
    AllowedTokens,
    Constraint,
    Exclude,
    MinLength,
    NoRepeat,
    OpenEnd,
    Prefix,
)
from transduce.decoding.constraints.include import Include
from transduce.decoding.output import Output
from transduce.decoding.search.hypothesis import penalty
from transduce.decoding.search.stepper import Stepper
from transduce.inspection.page import visible
from transduce.models.call_context import attention_of
from transduce.models.decoders import DecoderState
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.model import Model

KEPT, ENDED, PRUNED, END_PRUNED, OPEN = "kept", "ended", "pruned", "end pruned", "open"
BANK = "bank"
"""Pruned although it scored better than some that were kept: these have more of the required
phrases."""
BANNED = "banned"

Ids = tuple[int, ...]


class Candidate(NamedTuple):
    """A candidate of a step: a hypothesis and the token that it might go on with."""

    total: float
    prefix: Ids
    token: int
    rank: int | None = None
    reason: str | None = None


def beam_tree(
    trace: Trace, nbest: Sequence[Output], pieces: Callable[[list[int]], list[str]]
) -> dict[str, Any] | None:
    """Nodes [parent, token, log-probability, fate, rank, score, place, reason], the root first.

    rank: among the candidates of the step, from 1. score: of what has ended. place: in the n-best
    list, from 0; or None. reason: why a constraint banned it. None instead of a tree where there
    was no beam. pieces: what tokens are called.
    """
    if trace.size < 2 or not trace.steps:
        return None
    nodes: list[list[Any]] = [[None, "", 0.0, KEPT, None, None, None, None]]
    index: dict[Ids, int] = {(): 0}
    places = {(*output.ids, END): place for place, output in enumerate(nbest)}
    for number, asked in enumerate(trace.steps):
        following = trace.steps[number + 1].prefixes if number + 1 < len(trace.steps) else None
        count = 2 * trace.size
        candidates = _candidates(asked, count)
        kept = [
            one.total for one in candidates if following and (*one.prefix, one.token) in following
        ]
        still_open = 0
        for candidate in [*candidates, *_banned(asked, candidates, count)]:
            whole = (*candidate.prefix, candidate.token)
            if whole in index or candidate.prefix not in index:
                continue
            fate, score = PRUNED, None
            if candidate.reason is not None:
                fate = BANNED
            elif candidate.token == END:
                assert candidate.rank is not None
                fate = ENDED if candidate.rank <= trace.size else END_PRUNED
                score = candidate.total / float(penalty(len(whole), trace.length_penalty))
                if whole in places:
                    score = nbest[places[whole]].score  # with the coverage penalty, if there is one
            elif following is None:
                fate = OPEN if still_open < trace.size else PRUNED
                still_open += 1
            elif whole in following:
                fate = KEPT
            elif asked.order is not None and kept and candidate.total > min(kept):
                fate = BANK
            if fate != BANNED:
                index[whole] = len(nodes)
            (piece,) = pieces([candidate.token])
            value = None if score is None else round(score, 4)
            about = [
                index[candidate.prefix],
                visible(piece),
                round(candidate.total, 4),
                fate,
                candidate.rank,
                value,
            ]
            nodes.append([*about, places.get(whole), candidate.reason])
    _add_cut_off(nodes, index, nbest)
    banned = any(node[3] == BANNED for node in nodes)
    return {"size": trace.size, "phrases": trace.has_phrases, "banned": banned, "nodes": nodes}


def _add_cut_off(nodes: list[list[Any]], index: dict[Ids, int], nbest: Sequence[Output]) -> None:
    """The hypotheses of the n-best list that were at their length limit."""
    for place, output in enumerate(nbest):
        before = index.get(tuple(output.ids))
        if before is None or (*output.ids, END) in index:
            continue
        if len(output.tokens) > len(output.ids):  # with an END that had to come
            about = [before, visible(output.tokens[-1]), round(output.log_probability, 4)]
            nodes.append([*about, ENDED, None, round(output.score, 4), place, None])
        else:  # cut off, as what never ends by itself
            nodes[before][5:7] = [round(output.score, 4), place]


def _candidates(asked: Asked, count: int) -> list[Candidate]:
    """The candidates to go on from a step, in the order of search."""
    if asked.order is not None:
        found = [(total, asked.prefixes[row], token) for row, token, total in asked.order]
    else:
        # A row may be of no hypothesis, where too few tokens are permitted.
        rows = {
            prefix: (total, likeliest)
            for prefix, total, likeliest in zip(*asked[:3], strict=True)
            if total > NEG_INF
        }
        found = [
            (total + value, prefix, token)
            for prefix, (total, likeliest) in rows.items()
            for token, value in likeliest
        ]
        found.sort(key=lambda one: -one[0])
    return [Candidate(*one, rank) for rank, one in enumerate(found[:count], start=1)]


def _banned(asked: Asked, candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """What constraints banned, where it would have been among the candidates."""
    full = len(candidates) >= count
    worst = min((one.total for one in candidates), default=NEG_INF) if full else NEG_INF
    found = {
        (prefix, token): Candidate(total + value, prefix, token, None, reason)
        for prefix, total, banned in zip(asked.prefixes, asked.totals, asked.banned, strict=True)
        for token, value, reason in banned
        if total + value > worst
    }
    return sorted(found.values(), key=lambda one: -one.total)[:count]


# ----------------------------------------------------------------------------------------------
# Records a beam search: its hypotheses at each step, their candidates, and what was banned.
#
# The search itself is unchanged. It calls a wrapped model that records every step: the prefixes
# that it is called with are those that search has kept. Constraints are asked which tokens they
# ban.

REASONS: dict[type[Constraint], str] = {
    Prefix: "the output must begin with the given prefix",
    Include: "a required phrase would be missing, or would no longer fit",
    Exclude: "it would complete an excluded phrase",
    NoRepeat: "it would repeat an n-gram (no_repeat_ngram)",
    MinLength: "the output may not end yet (min_length)",
    AllowedTokens: "it is not among the allowed tokens",
    OpenEnd: "this model continues until the length limit",
}


class Asked(NamedTuple):
    """One step of a search: its hypotheses, and what each may go on with."""

    prefixes: list[Ids]
    totals: list[float]
    """Their log-probabilities."""
    likeliest: list[list[tuple[int, float]]]
    """Of each hypothesis the likeliest permitted tokens."""
    banned: list[list[tuple[int, float, str]]]
    """Of each hypothesis those of the likeliest tokens that constraints ban, and why."""
    order: list[tuple[int, int, float]] | None
    """With required phrases, candidates in the order in which banks name them: the row of the
    hypothesis, the token, the log-probability of both."""


@dataclass
class Trace:
    """All steps of the search for one source; empty where there was no beam."""

    steps: list[Asked] = field(default_factory=list)
    size: int = 0
    length_penalty: float = 0.0
    why_none: str = ""
    """Why a beam is not recorded, where it is not."""

    @property
    def has_phrases(self) -> bool:
        """Whether hypotheses took turns by how much of required phrases they contain."""
        return any(step.order is not None for step in self.steps)


def traced(model: Model) -> tuple[Model, Trace]:
    """The model once more, and a record of its beam search for one source; the model itself may be
    used by other threads meanwhile."""
    trace = Trace()
    if not isinstance(model, GenerativeModel):
        return model, trace
    twin = copy(model)
    configure = twin._configure

    def recorded(task: BatchDecoder) -> BatchDecoder:
        task = configure(task)
        settings = task.settings
        if settings.draws:
            trace.why_none = "Outputs were sampled: there was no beam."
        elif settings.groups > 1:
            trace.why_none = (
                "The groups of diverse beam search are not drawn as a tree; leave out groups."
            )
        elif settings.bidirectional:
            trace.why_none = (
                "Two beams, one from the left and one from the right, are not drawn as one tree; "
                "give --no-bidirectional for the first alone."
            )
        if trace.why_none:
            return task
        trace.size = max(settings.beam or 1, settings.nbest)
        trace.length_penalty = settings.length_penalty or 0.0
        given_fields = {one.name: getattr(task, one.name) for one in fields(BatchDecoder)}
        model = cast(Stepper, _Recording(task.model, trace))
        return _RecordedDecoder(**{**given_fields, "model": model}, trace=trace)

    # CUDA graphs run whole steps on the device; only the plain search can be recorded.
    vars(twin)["_fast_search"] = lambda context: None
    vars(twin)["_configure"] = recorded
    return twin, trace


@dataclass(frozen=True)
class _RecordedDecoder(BatchDecoder):
    """A decoder whose constraints say what they ban."""

    trace: Trace = field(default_factory=Trace)

    def prepare(
        self, requests: Sequence[Request]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], list[Constraint]]:
        source, constraints = super().prepare(requests)
        self.trace.size = self._hypotheses(requests[0])  # required phrases may raise it
        for part in constraints:
            cast(_Recording, self.model).watch(part)
        return source, constraints


class _Recording:
    """A model that records its steps; each is complete when the next one begins."""

    def __init__(self, model: Stepper, trace: Trace) -> None:
        self.model = model
        self.trace = trace
        self.state: _Followed | None = None
        self.log_probs_RV = torch.zeros(0)
        self.reason_RV: Tensor | None = None
        """The number of the constraint that bans a token, from 1; 0: none does."""
        self.constraints: list[Constraint] = []

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> _Followed:
        return _Followed(self.model.start(source_BS, lengths_B))

    def step(self, tokens_B: Tensor, state: _Followed) -> tuple[Tensor, _Followed]:
        state.append(tokens_B.tolist())
        log_probs_BV, state.inner = self.model.step(tokens_B, state.inner)
        self.log_probs_RV = log_probs_BV.clone()  # search may write over them
        self.log_probs_RV[:, [PAD, BEGIN]] = NEG_INF
        self.state, self.reason_RV = state, None
        self.trace.steps.append(Asked(list(state.prefixes), list(state.totals), [], [], None))
        self._fill()
        return log_probs_BV, state

    def watch(self, constraint: Constraint) -> None:
        """Have a constraint say which tokens it bans, and in which order it puts candidates."""
        self.constraints.append(constraint)
        number, ban = len(self.constraints), constraint.ban

        def watched(banned_RV: Tensor, written_RT: Tensor) -> None:
            before_RV = banned_RV.clone()
            ban(banned_RV, written_RT)
            if self.reason_RV is None:
                self.reason_RV = torch.zeros_like(banned_RV, dtype=torch.int8)
            self.reason_RV[banned_RV & ~before_RV] = number
            self.reason_RV[~banned_RV] = 0  # a prefix permits what others ban
            self._fill()

        vars(constraint)["ban"] = watched
        if isinstance(constraint, Include):
            prefer = constraint.prefer

            def ordered(reached_BNV: Tensor, count: int) -> Tensor:
                index_BC = prefer(reached_BNV, count)
                totals = reached_BNV.flatten(1).gather(1, index_BC)[0].tolist()
                order = [
                    (*divmod(place, reached_BNV.shape[2]), total)
                    for place, total in zip(index_BC[0].tolist(), totals, strict=True)
                    if total > NEG_INF
                ]
                self.trace.steps[-1] = self.trace.steps[-1]._replace(order=order)
                return index_BC

            vars(constraint)["prefer"] = ordered

    def _fill(self) -> None:
        """The likeliest tokens of the last step, and what is known to be banned of them."""
        count = min(2 * self.trace.size, self.log_probs_RV.shape[1])
        permitted_RV = self.log_probs_RV
        banned: list[list[tuple[int, float, str]]] = [[] for _ in permitted_RV]
        if self.reason_RV is not None:
            permitted_RV = self.log_probs_RV.masked_fill(self.reason_RV > 0, NEG_INF)
            banned = self._banned(count, self.reason_RV)
        assert self.state is not None
        self.state.log_probs_BV = permitted_RV  # where too few are permitted, rows have no hope
        last = self.trace.steps[-1]
        likeliest = _likeliest(permitted_RV, count)
        self.trace.steps[-1] = last._replace(likeliest=likeliest, banned=banned)

    def _banned(self, count: int, reason_RV: Tensor) -> list[list[tuple[int, float, str]]]:
        """Of the tokens that would be the likeliest, those that are banned."""
        found = []
        for row, candidates in enumerate(_likeliest(self.log_probs_RV, count)):
            numbers = [int(reason_RV[row, token]) for token, _ in candidates]
            found.append(
                [
                    (token, value, REASONS[type(self.constraints[number - 1])])
                    for (token, value), number in zip(candidates, numbers, strict=True)
                    if number
                ]
            )
        return found


def _likeliest(log_probs_RV: Tensor, count: int) -> list[list[tuple[int, float]]]:
    best = log_probs_RV.topk(count, dim=1)
    return [
        [(token, value) for token, value in zip(*row, strict=True) if value > NEG_INF]
        for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


@dataclass
class _Followed:
    """A decoder's state, and which hypotheses its rows are."""

    inner: DecoderState
    prefixes: list[Ids] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    log_probs_BV: Tensor | None = None

    @property
    def attention_BS(self) -> Tensor | None:
        return attention_of(self.inner)

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
