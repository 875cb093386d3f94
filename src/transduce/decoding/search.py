"""Greedy search, sampling and beam search, batched, for whatever can start and step.

A hypothesis' score is its log-probability divided by ((5 + length) / 6) ** length_penalty
(Wu et al. 2016), its length counting the END token, plus what the parts add at its end. Rows never
influence each other. Parts (see parts.py) say what may come next; they never change what it is
worth.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from transduce.data.tokens import BEGIN, END, PAD
from transduce.decoding.include import Include
from transduce.decoding.parts import NEVER, Part, Parts
from transduce.models.decoders import DecoderState

Choose = Callable[[Tensor, Tensor, int], Tensor]
Following = Generator[Tensor, None, list[list["Hypothesis"]]]


class Stepper(Protocol):
    """All that search knows of a model."""

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState: ...

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_BV of the next token, in a tensor that search may write into."""


@dataclass(frozen=True)
class Hypothesis:
    """One output: its tokens without BEGIN and END, and what they are worth."""

    tokens: list[int]
    score: float
    log_probability: float


def penalty(length: Tensor | int, power: float) -> Tensor:
    """((5 + length) / 6) ** power."""
    return torch.as_tensor((5.0 + length) / 6.0).pow(power)


# ------------------------------------------------------------------------- greedy and sampling


def greedy(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    length_penalty: float = 1.0,
    parts: Sequence[Part] = (),
) -> list[list[Hypothesis]]:
    """The best token at every step. Row b has at most limits_B[b] ≥ 1 tokens, END among them."""
    source = (source_BS, lengths_B, limits_B)
    return _finish(follow(model, *source, best_token, length_penalty=length_penalty, parts=parts))


def best_token(log_probs_RV: Tensor, rows_R: Tensor, step: int) -> Tensor:
    return log_probs_RV.argmax(dim=-1)


def sample(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    seeds: Sequence[int],
    *,
    copies: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length_penalty: float = 1.0,
    parts: Sequence[Part] = (),
) -> list[list[Hypothesis]]:
    """`copies` independent samples of each source, best first.

    Each token is drawn from the top_k likeliest (0: all) that hold top_p of the mass.
    """
    longest = int(limits_B.max())
    choose = random_token(seeds, longest, source_BS.device, copies, temperature, top_k, top_p)
    source = (source_BS, lengths_B, limits_B)
    return _finish(
        follow(model, *source, choose, copies=copies, length_penalty=length_penalty, parts=parts)
    )


def random_token(
    seeds: Sequence[int],
    longest: int,
    device: torch.device,
    copies: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
) -> Choose:
    """Draws a token a row. Sample i of a source has a generator of its own, seeded by seed + i:
    what is drawn depends on no neighbour, and the first samples not on how many follow."""
    draws_RT = torch.stack(
        [
            torch.rand(longest, generator=torch.Generator().manual_seed(seed + copy))
            for seed in seeds
            for copy in range(copies)
        ]
    ).to(device)

    def choose(log_probs_RV: Tensor, rows_R: Tensor, step: int) -> Tensor:
        # From the best downwards: the best stays finite, however low the temperature.
        below_RV = log_probs_RV - log_probs_RV.amax(dim=-1, keepdim=True)
        likely_RV, order_RV = _nucleus(below_RV / temperature, top_k, top_p)
        draw_R1 = draws_RT[rows_R, step, None].to(likely_RV.dtype)
        cumulative_RV = likely_RV.cumsum(dim=-1)
        total_R1 = cumulative_RV[:, -1:]
        rank_R1 = (cumulative_RV <= draw_R1 * total_R1).sum(dim=-1, keepdim=True)
        return order_RV.gather(1, rank_R1.clamp(max=likely_RV.shape[1] - 1)).squeeze(1)

    return choose


def _nucleus(log_probs_RV: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Probabilities in falling order, zero outside top_k and top_p, and the tokens they are of."""
    keep = min(top_k, log_probs_RV.shape[1]) if top_k else log_probs_RV.shape[1]
    logits_RV, order_RV = log_probs_RV.topk(keep, dim=-1)
    probs_RV = logits_RV.softmax(dim=-1)
    before_RV = probs_RV.cumsum(dim=-1) - probs_RV
    return probs_RV.masked_fill(before_RV >= top_p, 0.0), order_RV


def follow(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    choose: Choose,
    *,
    copies: int = 1,
    length_penalty: float = 1.0,
    parts: Sequence[Part] = (),
) -> Following:
    """One path a row, `copies` rows a source; each token by `choose(log_probs_RV, rows_R, step)`.

    Yields the tokens_R of each step; returns the hypotheses of each source, best first. A source
    has fewer than `copies` where the parts left nothing to write.
    """
    device, batch = source_BS.device, len(source_BS)
    longest, shortest = int(limits_B.max()), int(limits_B.min())
    shaped = Parts(parts)
    state = model.start(source_BS, lengths_B)
    rows_R = torch.arange(batch * copies, device=device)
    limits_R = limits_B.to(device).repeat_interleave(copies)
    if copies > 1:
        state.reorder(rows_R // copies)
        shaped.reorder(rows_R // copies)
    tokens_R = torch.full_like(rows_R, BEGIN)
    written_RT = torch.full((len(rows_R), longest), PAD, device=device)
    total_R = torch.zeros(len(rows_R), device=device)
    closing_R = torch.zeros(len(rows_R), device=device)
    open_R = torch.ones_like(rows_R, dtype=torch.bool)
    for step in range(longest):
        log_probs_RV, state = model.step(tokens_R, state)
        last_R = limits_R[rows_R] == step + 1 if step + 1 >= shortest else None
        log_probs_RV = shaped.permitted(log_probs_RV, written_RT[rows_R, :step], last_R)
        tokens_R = choose(log_probs_RV, rows_R, step).masked_fill(~open_R, PAD)
        written_RT[rows_R, step] = tokens_R
        worth_R = log_probs_RV.gather(1, tokens_R[:, None]).squeeze(1)
        total_R[rows_R] += worth_R.masked_fill(~open_R, 0.0)
        if shaped.closes:
            closing_R[rows_R] = torch.where(open_R, shaped.closing(), closing_R[rows_R])
        yield tokens_R
        open_R = open_R & (tokens_R != END) & (worth_R > NEVER)
        left = int(open_R.sum())  # the one wait for the device in a step
        if left == 0:
            break
        if _shrinks(left, len(open_R), device):
            left_R = open_R.nonzero().squeeze(1)
            rows_R, tokens_R, open_R = rows_R[left_R], tokens_R[left_R], open_R[left_R]
            state.reorder(left_R)
            shaped.reorder(left_R)
    sizes_R = (written_RT != PAD).sum(dim=1)
    score_R = total_R / penalty(sizes_R, length_penalty) + closing_R
    found = _hypotheses(
        score_R.view(batch, -1), written_RT.view(batch, copies, -1), total_R.view(batch, -1)
    )
    return [sorted(of_one, key=lambda h: -h.score) for of_one in found]


def _finish(following: Following) -> list[list[Hypothesis]]:
    while True:
        try:
            next(following)
        except StopIteration as end:
            return list(end.value)


def _shrinks(left: int, rows: int, device: torch.device) -> bool:
    """Whether those that ended leave the batch now. On a CPU every row costs; on a GPU hardly any
    does, and a new shape costs more: there it happens when half are done."""
    return left < rows if device.type == "cpu" else left <= rows // 2


# --------------------------------------------------------------------------------------- beam


def beam(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    size: int,
    nbest: int = 1,
    length_penalty: float = 1.0,
    parts: Sequence[Part] = (),
    groups: int = 1,
    diversity: float = 0.0,
) -> list[list[Hypothesis]]:
    """The nbest hypotheses of each row, best first, from a beam of `size`.

    A row stops only when no open hypothesis can still come among its nbest: log-probabilities
    only fall and parts add nothing above zero, so an open one never scores above what it has now
    over the mildest penalty ahead.

    Groups (Vijayakumar et al. 2016, https://arxiv.org/abs/1610.02424) share the beam and the
    nbest: each searches for itself, but at every step dislikes, by `diversity`, the tokens that
    the groups before it have just taken. What two groups have found counts once.
    """
    device, batch, longest = source_BS.device, len(source_BS), int(limits_B.max())
    shortest = int(limits_B.min())
    nbest_of_group = -(-nbest // groups)
    size = max(-(-size // groups), nbest_of_group)
    shaped = Parts(parts)
    include = next((part for part in parts if isinstance(part, Include)), None)

    # From here on a row is one group of one source; it has `size` hypotheses.
    rows_B = torch.arange(batch * groups, device=device)
    state = model.start(source_BS, lengths_B)
    state.reorder((rows_B // groups).repeat_interleave(size))
    shaped.reorder((rows_B // groups).repeat_interleave(size))
    limits_B = limits_B.to(device)[rows_B // groups]
    tokens_BN = torch.full((len(rows_B), size), BEGIN, device=device)
    open_BN = torch.full((len(rows_B), size), NEVER, device=device)
    open_BN[:, 0] = 0.0
    open_BNT = torch.full((len(rows_B), size, longest), PAD, device=device)
    ended_BN = torch.full((len(rows_B), nbest_of_group), NEVER, device=device)
    ended_BNT = torch.full((len(rows_B), nbest_of_group, longest), PAD, device=device)
    total_BN = torch.full((len(rows_B), nbest_of_group), NEVER, device=device)
    found = (ended_BN.clone(), ended_BNT.clone(), total_BN.clone())

    for step in range(longest):
        log_probs_RV, state = model.step(tokens_BN.flatten(), state)
        last_B = limits_B == step + 1
        last_R = last_B.repeat_interleave(size) if step + 1 >= shortest else None
        log_probs_RV = shaped.permitted(log_probs_RV, open_BNT.flatten(0, 1)[:, :step], last_R)
        V = log_probs_RV.shape[1]
        reached_BNV = open_BN[:, :, None] + log_probs_RV.view(len(rows_B), size, V)

        # 2N candidates, in the order of preference: even if N of them end, N stay open.
        index_BC = _candidates(reached_BNV, include, groups, diversity)
        candidate_BC = reached_BNV.flatten(1).gather(1, index_BC)
        parent_BC, token_BC = index_BC // V, index_BC % V
        ends_BC = token_BC == END

        # An END ends a hypothesis only among the N best: a beam of one does as greedy search.
        last_BN = candidate_BC[:, :size].masked_fill(~ends_BC[:, :size], NEVER)
        score_BN = last_BN / penalty(step + 1, length_penalty)
        if shaped.closes:
            score_BN = score_BN + shaped.closing().view(-1, size).gather(1, parent_BC[:, :size])
        written_BNT = _take(open_BNT, parent_BC[:, :size])
        written_BNT[:, :, step] = END
        ended_BN, best_BN = torch.cat([ended_BN, score_BN], dim=1).topk(nbest_of_group, dim=1)
        ended_BNT = _take(torch.cat([ended_BNT, written_BNT], dim=1), best_BN)
        total_BN = torch.cat([total_BN, last_BN], dim=1).gather(1, best_BN)

        # The N first that do not end stay open, unless the row is done.
        place_C = torch.arange(ends_BC.shape[1], device=device)
        kept_BN = (place_C + len(place_C) * ends_BC).topk(size, dim=1, largest=False).indices
        open_BN = candidate_BC.gather(1, kept_BN)
        tokens_BN, parent_BN = token_BC.gather(1, kept_BN), parent_BC.gather(1, kept_BN)
        open_BNT = _take(open_BNT, parent_BN)
        open_BNT[:, :, step] = tokens_BN
        mildest_B = penalty(limits_B, length_penalty).clamp(
            min=float(penalty(step + 2, length_penalty))
        )
        hope_B = open_BN.amax(dim=1) / mildest_B
        done_B = (ended_BN[:, -1] >= hope_B) | last_B
        open_BN = open_BN.masked_fill(done_B[:, None], NEVER)

        # The groups of a source stay side by side: all leave, or none.
        waiting_B = (~done_B).view(-1, groups).any(dim=1).repeat_interleave(groups)
        left = int(waiting_B.sum())  # the one wait for the device in a step
        row_B = torch.arange(len(rows_B), device=device)
        if left == 0 or _shrinks(left, len(rows_B), device):
            for whole, part in zip(found, (ended_BN, ended_BNT, total_BN), strict=True):
                whole[rows_B] = part
            if left == 0:
                break
            row_B = waiting_B.nonzero().squeeze(1)
            rows_B, limits_B = rows_B[row_B], limits_B[row_B]
            open_BN, open_BNT, tokens_BN = open_BN[row_B], open_BNT[row_B], tokens_BN[row_B]
            ended_BN, ended_BNT, total_BN = ended_BN[row_B], ended_BNT[row_B], total_BN[row_B]
            parent_BN = parent_BN[row_B]
        index_R = (row_B[:, None] * size + parent_BN).flatten()
        state.reorder(index_R)
        shaped.reorder(index_R)
    scores, tokens, totals = (whole.reshape(batch, -1, *whole.shape[2:]) for whole in found)
    return [_distinct(of_one, nbest) for of_one in _hypotheses(scores, tokens, totals)]


def _candidates(
    reached_BNV: Tensor, include: Include | None, groups: int, diversity: float
) -> Tensor:
    """Of each row the 2N candidates it prefers, the best first: places_BC in its N x V."""
    B, N, V = reached_BNV.shape
    count = min(2 * N, N * V)
    if include is not None:
        return include.prefer(reached_BNV, count)
    if groups == 1:
        return reached_BNV.flatten(1).topk(count, dim=1).indices
    reached_BGNV = reached_BNV.view(-1, groups, N, V)
    taken_BV = reached_BNV.new_zeros(B // groups, V)
    chosen = []
    for group in range(groups):
        wished_BNV = reached_BGNV[:, group] - diversity * taken_BV[:, None]
        index_BC = wished_BNV.flatten(1).topk(count, dim=1).indices
        alive_BN = reached_BGNV[:, group].flatten(1).gather(1, index_BC[:, :N]) > NEVER
        taken_BV.scatter_add_(1, index_BC[:, :N] % V, alive_BN.to(taken_BV.dtype))
        taken_BV[:, END] = 0.0  # ending at the same length is no lack of variety
        chosen.append(index_BC)
    return torch.stack(chosen, dim=1).flatten(0, 1)


def _take(items_BNT: Tensor, index_BC: Tensor) -> Tensor:
    """Of each row, the items at its indices."""
    return items_BNT.gather(1, index_BC[:, :, None].expand(-1, -1, items_BNT.shape[2]))


def _hypotheses(score_BN: Tensor, tokens_BNT: Tensor, total_BN: Tensor) -> list[list[Hypothesis]]:
    """What each row has found; a score of NEVER is an empty place."""
    return [
        [
            Hypothesis(tokens[: tokens.index(END)], score, total)
            for score, tokens, total in zip(*row, strict=True)
            if score > NEVER
        ]
        for row in zip(score_BN.tolist(), tokens_BNT.tolist(), total_BN.tolist(), strict=True)
    ]


def _distinct(hypotheses: list[Hypothesis], nbest: int) -> list[Hypothesis]:
    found: dict[tuple[int, ...], Hypothesis] = {}
    for hypothesis in sorted(hypotheses, key=lambda h: -h.score):
        found.setdefault(tuple(hypothesis.tokens), hypothesis)
    return list(found.values())[:nbest]
