"""The beam as a tree: which hypotheses were kept and pruned at each step, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from transduce.data.tokens.tokenizer import END, Tokens
from transduce.decoding.constraints.constraint import NEG_INF
from transduce.decoding.output import Output
from transduce.decoding.search.hypothesis import penalty
from transduce.inspection.look.trace import Asked, Trace
from transduce.inspection.page import visible

KEPT, ENDED, PRUNED, END_PRUNED, OPEN = "kept", "ended", "pruned", "end pruned", "open"
BANK = "bank"
"""Pruned although it scored better than some that were kept: these have more of the required
phrases."""
BANNED = "banned"

Prefix = tuple[int, ...]


class Candidate(NamedTuple):
    """A candidate of a step: a hypothesis and the token that it might go on with."""

    total: float
    prefix: Prefix
    token: int
    rank: int | None = None
    reason: str | None = None


def beam_tree(trace: Trace, nbest: Sequence[Output], tokens: Tokens) -> dict[str, Any] | None:
    """Nodes [parent, token, log-probability, fate, rank, score, place, reason], the root first.

    rank: among the candidates of the step, from 1. score: of what has ended. place: in the n-best
    list, from 0; or None. reason: why a constraint banned it. None instead of a tree where there
    was no beam.
    """
    if trace.size < 2 or not trace.steps:
        return None
    nodes: list[list[Any]] = [[None, "", 0.0, KEPT, None, None, None, None]]
    index: dict[Prefix, int] = {(): 0}
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
            (piece,) = tokens.pieces([candidate.token])
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


def _add_cut_off(nodes: list[list[Any]], index: dict[Prefix, int], nbest: Sequence[Output]) -> None:
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
