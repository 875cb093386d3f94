"""Greedy search, sampling and beam search, batched, for whatever can start and step.

A hypothesis' score is its log-probability divided by ((5 + length) / 6) ** length_penalty
(Wu et al. 2016), its length counting the END token. Rows never influence each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from transduce.data.tokens import BEGIN, END, PAD
from transduce.models.decoders import DecoderState

NEVER = float("-inf")


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


def greedy(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """The best token at every step. Row b has at most limits_B[b] ≥ 1 tokens, END among them."""

    def choose(log_probs_BV: Tensor, rows_B: Tensor, step: int) -> Tensor:
        return log_probs_BV.argmax(dim=-1)

    return _follow(model, source_BS, lengths_B, limits_B, length_penalty, choose)


def sample(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    seeds: Sequence[int],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length_penalty: float = 1.0,
) -> list[Hypothesis]:
    """A random token at every step, from the top_k likeliest (0: all) that hold top_p of the mass.

    Row b draws from a generator of its own, seeded by seeds[b]: the same whatever its batch is.
    """
    draws_BT = torch.stack(
        [
            torch.rand(int(limits_B.max()), generator=torch.Generator().manual_seed(seed))
            for seed in seeds
        ]
    )

    def choose(log_probs_BV: Tensor, rows_B: Tensor, step: int) -> Tensor:
        # From the best downwards: the best stays finite, however low the temperature.
        below_BV = log_probs_BV - log_probs_BV.amax(dim=-1, keepdim=True)
        likely_BV, order_BV = _nucleus(below_BV / temperature, top_k, top_p)
        draw_B1 = draws_BT[rows_B.cpu(), step, None].to(likely_BV)
        cumulative_BV = likely_BV.cumsum(dim=-1)
        total_B1 = cumulative_BV[:, -1:]
        rank_B1 = (cumulative_BV <= draw_B1 * total_B1).sum(dim=-1, keepdim=True)
        return order_BV.gather(1, rank_B1.clamp(max=likely_BV.shape[1] - 1)).squeeze(1)

    return _follow(model, source_BS, lengths_B, limits_B, length_penalty, choose)


def _nucleus(log_probs_BV: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Probabilities in falling order, zero outside top_k and top_p, and the tokens they are of."""
    keep = min(top_k, log_probs_BV.shape[1]) if top_k else log_probs_BV.shape[1]
    logits_BV, order_BV = log_probs_BV.topk(keep, dim=-1)
    probs_BV = logits_BV.softmax(dim=-1)
    before_BV = probs_BV.cumsum(dim=-1) - probs_BV
    return probs_BV.masked_fill(before_BV >= top_p, 0.0), order_BV


def _follow(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    length_penalty: float,
    choose: Callable[[Tensor, Tensor, int], Tensor],
) -> list[Hypothesis]:
    """One hypothesis a row, each next token chosen by `choose(log_probs_BV, rows_B, step)`."""
    device = source_BS.device
    state = model.start(source_BS, lengths_B)
    rows_B = torch.arange(len(source_BS), device=device)
    limits_B = limits_B.to(device)
    tokens_B = torch.full_like(rows_B, BEGIN)
    written_BT = torch.full((len(rows_B), int(limits_B.max())), PAD, device=device)
    total_B = torch.zeros(len(rows_B), device=device)
    for step in range(written_BT.shape[1]):
        log_probs_BV, state = model.step(tokens_B, state)
        log_probs_BV = _never(log_probs_BV, (PAD, BEGIN))
        tokens_B = choose(log_probs_BV, rows_B, step)
        tokens_B = tokens_B.masked_fill(limits_B[rows_B] == step + 1, END)
        written_BT[rows_B, step] = tokens_B
        total_B[rows_B] += log_probs_BV.gather(1, tokens_B[:, None]).squeeze(1)
        open_B = tokens_B != END
        if not open_B.all():
            # Those that ended leave the batch; the rest goes on in a smaller one.
            left_B = open_B.nonzero().squeeze(1)
            if len(left_B) == 0:
                break
            rows_B, tokens_B = rows_B[left_B], tokens_B[left_B]
            state.reorder(left_B)
    sizes_B = (written_BT != PAD).sum(dim=1)
    score_B = total_B / penalty(sizes_B, length_penalty)
    return [
        Hypothesis(written[: size - 1], score, total)
        for written, size, score, total in zip(
            written_BT.tolist(), sizes_B.tolist(), score_B.tolist(), total_B.tolist(), strict=True
        )
    ]


def _never(log_probs_BV: Tensor, tokens: tuple[int, ...]) -> Tensor:
    log_probs_BV[:, list(tokens)] = NEVER
    return log_probs_BV


def beam(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    size: int,
    nbest: int = 1,
    length_penalty: float = 1.0,
) -> list[list[Hypothesis]]:
    """The nbest hypotheses of each row, best first, from a beam of `size`.

    A row stops only when no open hypothesis can still come among its nbest: log-probabilities
    only fall, so an open one never scores above what it has now over the mildest penalty ahead.
    """
    device = source_BS.device
    batch, longest = len(source_BS), int(limits_B.max())
    size = max(size, nbest)
    state = model.start(source_BS, lengths_B)
    state.reorder(torch.arange(batch, device=device).repeat_interleave(size))

    rows_B = torch.arange(batch, device=device)
    limits_B = limits_B.to(device)
    open_BN = torch.full((batch, size), NEVER, device=device)
    open_BN[:, 0] = 0.0
    open_BNT = torch.full((batch, size, longest), PAD, device=device)
    ended_BN = torch.full((batch, nbest), NEVER, device=device)
    ended_BNT = torch.full((batch, nbest, longest), PAD, device=device)
    total_BN = torch.full((batch, nbest), NEVER, device=device)
    tokens_BN = torch.full((batch, size), BEGIN, device=device)
    finished: dict[int, list[Hypothesis]] = {}

    for step in range(longest):
        log_probs_XV, state = model.step(tokens_BN.flatten(), state)
        log_probs_XV = _never(log_probs_XV, (PAD, BEGIN))
        log_probs_BNV = log_probs_XV.view(len(rows_B), size, -1)
        last_B = limits_B == step + 1
        if last_B.any():
            other_V = torch.arange(log_probs_BNV.shape[-1], device=device) != END
            log_probs_BNV = log_probs_BNV.masked_fill(last_B[:, None, None] & other_V, NEVER)

        # 2N candidates: even if N of them end, N stay open.
        total_BNV = open_BN[:, :, None] + log_probs_BNV
        flat_BX = total_BNV.flatten(1)
        candidate_BC, index_BC = flat_BX.topk(min(2 * size, flat_BX.shape[1]), dim=1)
        parent_BC = index_BC // log_probs_BNV.shape[-1]
        token_BC = index_BC % log_probs_BNV.shape[-1]
        written_BCT = _take(open_BNT, parent_BC)
        written_BCT[:, :, step] = token_BC
        ends_BC = token_BC == END

        # An END ends a hypothesis only among the N best: a beam of one does as greedy search.
        last_BN = candidate_BC[:, :size].masked_fill(~ends_BC[:, :size], NEVER)
        score_BC = torch.cat([ended_BN, last_BN / penalty(step + 1, length_penalty)], dim=1)
        ended_BN, best_BN = score_BC.topk(nbest, dim=1)
        ended_BNT = _take(torch.cat([ended_BNT, written_BCT[:, :size]], dim=1), best_BN)
        total_BN = torch.cat([total_BN, last_BN], dim=1).gather(1, best_BN)

        open_BN, kept_BN = candidate_BC.masked_fill(ends_BC, NEVER).topk(size, dim=1)
        open_BNT = _take(written_BCT, kept_BN)
        tokens_BN = token_BC.gather(1, kept_BN)
        parent_BN = parent_BC.gather(1, kept_BN)

        mildest_B = torch.maximum(
            penalty(limits_B, length_penalty), penalty(step + 2, length_penalty)
        )
        hope_B = open_BN[:, 0] / mildest_B
        done_B = (ended_BN[:, -1] >= hope_B) | last_B
        row_index_B = torch.arange(len(rows_B), device=device)
        if done_B.any():
            for b in done_B.nonzero().squeeze(1).tolist():
                finished[int(rows_B[b])] = _hypotheses(ended_BN[b], ended_BNT[b], total_BN[b])
            left_B = (~done_B).nonzero().squeeze(1)
            if len(left_B) == 0:
                break
            row_index_B = left_B
            rows_B, limits_B = rows_B[left_B], limits_B[left_B]
            open_BN, open_BNT, tokens_BN = open_BN[left_B], open_BNT[left_B], tokens_BN[left_B]
            ended_BN, ended_BNT, total_BN = ended_BN[left_B], ended_BNT[left_B], total_BN[left_B]
            parent_BN = parent_BN[left_B]
        state.reorder((row_index_B[:, None] * size + parent_BN).flatten())
    return [finished[row] for row in range(batch)]


def _take(items_BNT: Tensor, index_BC: Tensor) -> Tensor:
    """Of each row, the items at its indices."""
    return items_BNT.gather(1, index_BC[:, :, None].expand(-1, -1, items_BNT.shape[2]))


def _hypotheses(score_N: Tensor, tokens_NT: Tensor, total_N: Tensor) -> list[Hypothesis]:
    found = []
    for score, tokens, total in zip(
        score_N.tolist(), tokens_NT.tolist(), total_N.tolist(), strict=True
    ):
        if score > NEVER:
            found.append(Hypothesis(tokens[: tokens.index(END)], score, total))
    return found
