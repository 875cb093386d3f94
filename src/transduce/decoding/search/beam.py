"""Beam search and diverse beam search, batched.

Models and constraints are those of greedy.py. What happens to the candidates of a step is said in
functions of their own, which the slots of continuous batching share (cuda/graph_slots.py): there
each row is at a step of its own, and nothing may have a shape that depends on values or wait for a
device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.constraints.constraint import NEG_INF, Constraint, Constraints
from transduce.decoding.constraints.hotwords import Hotwords
from transduce.decoding.constraints.include import Include
from transduce.decoding.search.hypothesis import (
    Hypothesis,
    best,
    hypotheses_of,
    penalty,
    remaining,
    shrinks,
)
from transduce.decoding.search.observer import SearchObserver
from transduce.decoding.search.rules import at_limit
from transduce.decoding.search.stepper import Stepper


class Candidates(NamedTuple):
    """The candidates of each row: log-probability, parent hypothesis and token."""

    reached_BC: Tensor
    parent_BC: Tensor
    token_BC: Tensor


class Ended(NamedTuple):
    """The finished hypotheses of each row, best first: score, tokens and log-probability."""

    score_BN: Tensor
    tokens_BNT: Tensor
    total_BN: Tensor

    @classmethod
    def none(cls, rows: int, nbest: int, longest: int, device: torch.device) -> Ended:
        """Places for so many; a score of NEG_INF marks an empty one."""
        score_BN = torch.full((rows, nbest), NEG_INF, device=device)
        tokens_BNT = torch.full((rows, nbest, longest), PAD, device=device)
        return cls(score_BN, tokens_BNT, score_BN.clone())


def beam(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    size: int,
    nbest: int = 1,
    length_penalty: float = 1.0,
    constraints: Sequence[Constraint] = (),
    groups: int = 1,
    diversity: float = 0.0,
    observer: SearchObserver | None = None,
    patience: float | None = None,
) -> list[list[Hypothesis]]:
    """The nbest hypotheses of each row, best first, from a beam of `size`.

    A row stops only when no open hypothesis can still enter its n-best list: log-probabilities
    only fall and constraints add nothing above zero, so the score of an open hypothesis is at most
    its log-probability now, divided by the largest length penalty ahead.

    With `patience` (Kasai et al. 2022, https://arxiv.org/abs/2204.05424) a row stops also when
    patience x size hypotheses have ended, whatever their scores.

    Diverse beam search (Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424): groups share
    the beam and the n-best list; at every step, each group penalizes the tokens that earlier groups
    have just chosen by `diversity`. A hypothesis found by two groups is kept once, so there may be
    fewer than nbest.

    On a CPU, where every row takes time, only hypotheses that can still enter the n-best list are
    extended. The others have lower log-probabilities than any of these, so no candidate of theirs
    takes the place of one that matters, and the result is the same.

    Rows that the observer has cancelled leave the batch, without hypotheses.

    With hotwords, scores and log-probabilities here have their bonus, and a score may rise: that of
    an open hypothesis by the bonus of the longest phrase, as far as stopping is concerned.
    """
    device, batch, longest = source_BS.device, len(source_BS), int(limits_B.max())
    shortest = int(limits_B.min())
    nbest_of_group = -(-nbest // groups)
    size = max(-(-size // groups), nbest_of_group)
    shaped = Constraints(constraints)
    include = next((part for part in constraints if isinstance(part, Include)), None)
    hotwords = next((part for part in constraints if isinstance(part, Hotwords)), None)

    # From here on a row is one group of one source. It begins with a single hypothesis.
    rows_B = torch.arange(batch * groups, device=device)
    state = model.start(source_BS, lengths_B)
    if groups > 1:
        state.reorder(rows_B // groups)
        shaped.reorder(rows_B // groups)
    limits_B = limits_B.to(device)[rows_B // groups]
    tokens_BN = torch.full((len(rows_B), 1), BEGIN, device=device)
    open_BN = torch.zeros(len(rows_B), 1, device=device)
    open_BNT = torch.full((len(rows_B), 1, longest), PAD, device=device)
    ended = Ended.none(len(rows_B), nbest_of_group, longest, device)
    found = Ended(*(part.clone() for part in ended))
    penalties = penalty(torch.arange(1, longest + 2), length_penalty).tolist()
    at_limit_B = penalty(limits_B, length_penalty)
    ahead_B = None if hotwords is None else hotwords.ahead_B[rows_B // groups]
    first_B1, place_B1 = rows_B[:, None], rows_B[:, None] * size  # of a row's hypotheses
    prunes = device.type == "cpu" and groups == 1 and include is None and not shaped.closes
    ended_B = torch.zeros(len(rows_B), device=device)  # how many hypotheses have ended
    maximum = finished_at_most(patience, size, nbest_of_group)
    live_R: Tensor | None = None  # which of the B x N hypotheses the model has; None: all

    for step in range(longest):
        N = tokens_BN.shape[1]
        log_probs_RV, state = model.step(_chosen(tokens_BN.flatten(), live_R), state)
        last_B = at_limit(step, limits_B)
        last_R = None
        if step + 1 >= shortest:
            last_R = _chosen(last_B.repeat_interleave(N), live_R)
        written_RT = open_BNT.flatten(0, 1)[:, :step]
        if shaped.constraints:
            written_RT = _chosen(written_RT, live_R)
        log_probs_RV = shaped.permitted(log_probs_RV, written_RT, last_R, state)
        log_probs_RV = shaped.with_bonus(log_probs_RV, written_RT)

        # Twice as many candidates as stay open, best first: half of them may end.
        if include is None and groups == 1:
            made = _best_of_all(log_probs_RV, open_BN, 2 * size, live_R)
        else:
            made = _preferred(log_probs_RV, open_BN, size, include, groups, diversity)
        made = _filled_up(made, 2 * size)

        # On a CPU the check is cheap: skip the rest where no candidate ends.
        if device.type != "cpu" or bool((made.token_BC == END).any()):
            closing_BN = shaped.closing().view(-1, N) if shaped.closes else None
            ended, last_BN = add_ended(ended, made, open_BNT, step, penalties[step], closing_BN)
            ended_B = ended_B + (last_BN > NEG_INF).sum(dim=1)
            made = that_stay_open(made, size)
        open_BN, parent_BN, tokens_BN = (part_BC[:, :size] for part_BC in made)
        open_BNT = extended(open_BNT, parent_BN, step, tokens_BN)
        mildest_B = at_limit_B.clamp(min=penalties[step + 1])
        possible_BN = open_BN
        if ahead_B is not None:  # what is above zero is divided by the smallest penalty ahead
            possible_BN = open_BN + ahead_B[:, None]
            least_B = at_limit_B.clamp(max=penalties[step + 1])
            risen_BN = possible_BN * (mildest_B / least_B)[:, None]
            possible_BN = torch.where(possible_BN > 0, risen_BN, possible_BN)
        done_B = is_done(ended, possible_BN, mildest_B, last_B, ended_B, maximum)
        gone_B = None if observer is None else observer.gone(rows_B // groups)
        if gone_B is not None:
            done_B |= gone_B
            ended = ended._replace(score_BN=ended.score_BN.masked_fill(gone_B[:, None], NEG_INF))
        open_BN = open_BN.masked_fill(done_B[:, None], NEG_INF)
        if prunes:
            lost_BN = possible_BN / mildest_B[:, None] <= ended.score_BN[:, -1:]
            open_BN.masked_fill_(lost_BN, NEG_INF)

        # The groups of a source stay together: all leave the batch, or none.
        waiting_B = ~done_B
        if groups > 1:
            waiting_B = waiting_B.view(-1, groups).any(dim=1).repeat_interleave(groups)
        left = int(waiting_B.sum())  # the only synchronization with the device in a step
        if left == 0 or gone_B is not None or shrinks(left, len(rows_B), device):
            for whole, part in zip(found, ended, strict=True):
                whole[rows_B] = part
            if left == 0:
                break
            row_B = remaining(waiting_B.view(-1, groups)[:, 0], left // groups)
            row_B = (row_B[:, None] * groups + torch.arange(groups, device=device)).flatten()
            rows_B, limits_B, at_limit_B = rows_B[row_B], limits_B[row_B], at_limit_B[row_B]
            open_BN, open_BNT, tokens_BN = open_BN[row_B], open_BNT[row_B], tokens_BN[row_B]
            ended, ended_B = Ended(*(part[row_B] for part in ended)), ended_B[row_B]
            ahead_B = None if ahead_B is None else ahead_B[row_B]
            parent_BN, first_B1 = parent_BN[row_B], row_B[:, None] * N
        index_R = (first_B1 + parent_BN).flatten()
        first_B1 = place_B1[: len(rows_B)]
        if prunes:
            had_R, live_R = live_R, (open_BN.flatten() > NEG_INF).nonzero().squeeze(1)
            index_R = index_R[live_R]
            if had_R is not None:  # the place of each among the rows that the model has
                index_R = torch.searchsorted(had_R, index_R)
        state.reorder(index_R)
        shaped.reorder(index_R)
    scores, tokens, totals = (whole.reshape(batch, -1, *whole.shape[2:]) for whole in found)
    return [_distinct(of_one, nbest) for of_one in hypotheses_of(scores, tokens, totals)]


def finished_at_most(patience: float | None, size: int, nbest: int) -> int | None:
    """The finished hypotheses after which a search stops, which are not fewer than are asked for;
    None: not by their number."""
    return None if patience is None else max(nbest, round(patience * size))


# -------------------------------------------------------------------- the candidates of a step


def best_candidates(
    log_probs_RC: Tensor,
    token_RC: Tensor,
    open_BN: Tensor,
    count: int,
    top_k: Callable[[Tensor, int], tuple[Tensor, Tensor]] = best,
) -> Candidates:
    """Each row's best candidates, given the best tokens of each of its hypotheses: others cannot
    be among them. open_BN: the log-probability of each hypothesis."""
    (B, N), each = open_BN.shape, log_probs_RC.shape[1]
    reached_BC = (log_probs_RC.view(B, N, each) + open_BN[:, :, None]).flatten(1)
    reached_BC, place_BC = top_k(reached_BC, min(count, N * each))
    return Candidates(reached_BC, place_BC // each, token_RC.view(B, -1).gather(1, place_BC))


def add_ended(
    ended: Ended,
    made: Candidates,
    written_BNT: Tensor,
    step: int | Tensor,
    length_penalty: float | Tensor,
    closing_BN: Tensor | None = None,
) -> tuple[Ended, Tensor]:
    """The best finished hypotheses, with those that end now, and the log-probabilities of these.

    END counts only in the better half of the candidates, so that a beam of 1 equals greedy search.
    step, length_penalty: of each row [B], [B, 1], or of all.
    """
    size, nbest = made.token_BC.shape[1] // 2, ended.score_BN.shape[1]
    parent_BN = made.parent_BC[:, :size]
    last_BN = made.reached_BC[:, :size].masked_fill(made.token_BC[:, :size] != END, NEG_INF)
    score_BN = last_BN / length_penalty
    if closing_BN is not None:
        score_BN = score_BN + closing_BN.gather(1, parent_BN)
    whole_BNT = extended(written_BNT, parent_BN, step, END)
    score_BN, best_BN = torch.cat([ended.score_BN, score_BN], dim=1).topk(nbest, dim=1)
    tokens_BNT = _take(torch.cat([ended.tokens_BNT, whole_BNT], dim=1), best_BN)
    total_BN = torch.cat([ended.total_BN, last_BN], dim=1).gather(1, best_BN)
    return Ended(score_BN, tokens_BNT, total_BN), last_BN


def that_stay_open(made: Candidates, size: int) -> Candidates:
    """The first candidates that do not end."""
    ends_BC = made.token_BC == END
    place_C = torch.arange(ends_BC.shape[1], device=ends_BC.device)
    kept_BN = (place_C + len(place_C) * ends_BC).topk(size, dim=1, largest=False).indices
    return Candidates(*(part_BC.gather(1, kept_BN) for part_BC in made))


def extended(
    written_BNT: Tensor, parent_BN: Tensor, step: int | Tensor, token: int | Tensor
) -> Tensor:
    """What the parents have written, and one token more. step: of each row or of all."""
    found_BNT = _take(written_BNT, parent_BN)
    if isinstance(step, int):
        found_BNT[:, :, step] = token
        return found_BNT
    at_BN1 = step[:, None, None].expand(-1, parent_BN.shape[1], 1)
    return found_BNT.scatter_(2, at_BN1, token[:, :, None] if isinstance(token, Tensor) else token)


def is_done(
    ended: Ended,
    open_BN: Tensor,
    mildest_B: Tensor,
    last_B: Tensor,
    ended_B: Tensor,
    maximum: int | None,
) -> Tensor:
    """The rows at their maximum length, those whose open hypotheses cannot enter the n-best list
    any more, and those of which so many have ended. mildest_B: the largest penalty ahead."""
    done_B = (ended.score_BN[:, -1] >= open_BN.amax(dim=1) / mildest_B) | last_B
    return done_B if maximum is None else done_B | (ended_B >= maximum)


def _chosen(items_R: Tensor, live_R: Tensor | None) -> Tensor:
    return items_R if live_R is None else items_R[live_R]


def _best_of_all(
    log_probs_RV: Tensor, open_BN: Tensor, count: int, live_R: Tensor | None = None
) -> Candidates:
    """Each row's best candidates. live_R: the hypotheses that log_probs_RV are of, if not of
    all."""
    rows, each = open_BN.numel(), min(count, log_probs_RV.shape[1])
    log_probs_RC, token_RC = best(log_probs_RV, each)
    if live_R is not None and len(live_R) < rows:
        found_RC, token_of_RC = log_probs_RC, token_RC
        log_probs_RC = found_RC.new_full((rows, each), NEG_INF)
        token_RC = token_of_RC.new_full((rows, each), PAD)
        log_probs_RC[live_R], token_RC[live_R] = found_RC, token_of_RC
    return best_candidates(log_probs_RC, token_RC, open_BN, count)


def _preferred(
    log_probs_RV: Tensor,
    open_BN: Tensor,
    size: int,
    include: Include | None,
    groups: int,
    diversity: float,
) -> Candidates:
    """Each row's candidates in the order of required phrases or diverse groups."""
    V = log_probs_RV.shape[1]
    reached_BNV = log_probs_RV.view(*open_BN.shape, V).add_(open_BN[:, :, None])
    if include is not None:
        index_BC = include.prefer(reached_BNV, min(2 * size, reached_BNV[0].numel()))
    else:
        index_BC = _in_groups(reached_BNV, size, groups, diversity)
    return Candidates(reached_BNV.flatten(1).gather(1, index_BC), index_BC // V, index_BC % V)


def _filled_up(made: Candidates, count: int) -> Candidates:
    """Pad with impossible candidates, where a tiny vocabulary has too few."""
    if not (missing := count - made.token_BC.shape[1]):
        return made
    made = Candidates(*(pad(part_BC, (0, missing)) for part_BC in made))
    made.reached_BC[:, -missing:] = NEG_INF
    return made


def _in_groups(reached_BNV: Tensor, size: int, groups: int, diversity: float) -> Tensor:
    """Each row's best indices_BC into its N x V, penalizing the tokens of earlier groups."""
    B, N, V = reached_BNV.shape
    count = min(2 * size, N * V)
    reached_BGNV = reached_BNV.view(-1, groups, N, V)
    taken_BV = reached_BNV.new_zeros(B // groups, V)
    chosen = []
    for group in range(groups):
        penalized_BNV = reached_BGNV[:, group] - diversity * taken_BV[:, None]
        index_BC = best(penalized_BNV.flatten(1), count)[1]
        first_BN = index_BC[:, :size]
        alive_BN = reached_BGNV[:, group].flatten(1).gather(1, first_BN) > NEG_INF
        taken_BV.scatter_add_(1, first_BN % V, alive_BN.to(taken_BV.dtype))
        taken_BV[:, END] = 0.0  # ending at the same length is not penalized
        chosen.append(index_BC)
    return torch.stack(chosen, dim=1).flatten(0, 1)


def _take(items_BNT: Tensor, index_BC: Tensor) -> Tensor:
    """The items of each row at its indices."""
    return items_BNT.gather(1, index_BC[:, :, None].expand(-1, -1, items_BNT.shape[2]))


def _distinct(hypotheses: list[Hypothesis], nbest: int) -> list[Hypothesis]:
    found: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in sorted(hypotheses, key=lambda h: -h.score):
        found.setdefault(tuple(hypothesis.tokens), hypothesis)
    return list(found.values())[:nbest]
