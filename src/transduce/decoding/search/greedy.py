"""Greedy search and sampling, batched, for any model that can start and step.

Rows never influence each other. Constraints (see decoding/constraints) say which tokens may come
next; they never change log-probabilities. Beam search is in beam.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.constraints.constraint import NEG_INF, Constraint, Constraints
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

Choose = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
Following = Generator[Tensor, None, list[list[Hypothesis]]]


def greedy(
    model: Stepper,
    source_BS: Tensor,
    lengths_B: Tensor,
    limits_B: Tensor,
    length_penalty: float = 1.0,
    constraints: Sequence[Constraint] = (),
    observer: SearchObserver | None = None,
) -> list[list[Hypothesis]]:
    """The best token at every step. Row b has at most limits_B[b] ≥ 1 tokens, including END."""
    source = (source_BS, lengths_B, limits_B)
    return _finish(
        follow(
            model,
            *source,
            best_token,
            length_penalty=length_penalty,
            constraints=constraints,
            observer=observer,
        )
    )


def best_token(log_probs_RV: Tensor, rows_R: Tensor, step: int) -> tuple[Tensor, Tensor]:
    log_probs_R1, tokens_R1 = best(log_probs_RV, 1)
    return tokens_R1.squeeze(1), log_probs_R1.squeeze(1)


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
    constraints: Sequence[Constraint] = (),
    observer: SearchObserver | None = None,
) -> list[list[Hypothesis]]:
    """`copies` independent samples of each source, best first.

    Each token is drawn from the top_k most likely (0: all) within probability mass top_p (nucleus).
    """
    longest = int(limits_B.max())
    choose = random_token(seeds, longest, source_BS.device, copies, temperature, top_k, top_p)
    source = (source_BS, lengths_B, limits_B)
    return _finish(
        follow(
            model,
            *source,
            choose,
            copies=copies,
            length_penalty=length_penalty,
            constraints=constraints,
            observer=observer,
        )
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
    """Draws one token per row. Sample i of a source has its own generator, seeded by seed + i, so
    samples depend neither on other sources nor on the number of samples."""
    draws_RT = torch.stack(
        [
            torch.rand(longest, generator=torch.Generator().manual_seed(seed + copy))
            for seed in seeds
            for copy in range(copies)
        ]
    ).to(device)

    def choose(log_probs_RV: Tensor, rows_R: Tensor, step: int) -> tuple[Tensor, Tensor]:
        # Relative to the best, which stays finite at any temperature.
        below_RV = log_probs_RV - log_probs_RV.amax(dim=-1, keepdim=True)
        likely_RV, order_RV = _nucleus(below_RV / temperature, top_k, top_p)
        draw_R1 = draws_RT[rows_R, step, None].to(likely_RV.dtype)
        cumulative_RV = likely_RV.cumsum(dim=-1)
        total_R1 = cumulative_RV[:, -1:]
        rank_R1 = (cumulative_RV <= draw_R1 * total_R1).sum(dim=-1, keepdim=True)
        tokens_R1 = order_RV.gather(1, rank_R1.clamp(max=likely_RV.shape[1] - 1))
        return tokens_R1.squeeze(1), log_probs_RV.gather(1, tokens_R1).squeeze(1)

    return choose


def _nucleus(log_probs_RV: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Probabilities in falling order, zero outside top_k and top_p, and their tokens."""
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
    constraints: Sequence[Constraint] = (),
    observer: SearchObserver | None = None,
) -> Following:
    """One hypothesis per row, `copies` rows per source; `choose(log_probs_RV, rows_R, step)` gives
    the next tokens_R and their log-probabilities.

    Yields the tokens_R of each step; returns the hypotheses of each source, best first. A source
    has fewer than `copies` where the constraints allow no token, and none where the observer has
    cancelled it.
    """
    device, batch = source_BS.device, len(source_BS)
    longest, shortest = int(limits_B.max()), int(limits_B.min())
    shaped = Constraints(constraints)
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
    left = len(rows_R)
    found = (written_RT.clone(), total_R.clone(), closing_R.clone())
    for step in range(longest):
        log_probs_RV, state = model.step(tokens_R, state)
        last_R = at_limit(step, limits_R) if step + 1 >= shortest else None
        before_RT = written_RT[:, :step] if shaped.constraints else written_RT
        log_probs_RV = shaped.permitted(log_probs_RV, before_RT, last_R, state)
        scores_RV = shaped.with_bonus(log_probs_RV, before_RT)
        tokens_R, log_probs_R = choose(scores_RV, rows_R, step)
        if scores_RV is not log_probs_RV:
            log_probs_R = log_probs_RV.gather(1, tokens_R[:, None]).squeeze(1)
        if left < len(rows_R):
            tokens_R = tokens_R.masked_fill(~open_R, PAD)
            log_probs_R = log_probs_R.masked_fill(~open_R, 0.0)
        written_RT[:, step] = tokens_R
        total_R += log_probs_R
        if shaped.closes:
            closing_R = torch.where(open_R, shaped.closing(), closing_R)
        if observer is not None and copies == 1:
            observer.show(rows_R, tokens_R, log_probs_R, log_probs_RV)
        yield tokens_R
        gone_R = None if observer is None else observer.gone(rows_R // copies)
        # In most steps no row ends. The only synchronization with the device in a step.
        if gone_R is None and not shaped.constraints and END not in tokens_R.tolist():
            continue
        # Constraints may leave a row without an allowed token.
        ended_R = (tokens_R == END) | ~(log_probs_R > NEG_INF)
        if gone_R is not None:
            total_R = total_R.masked_fill(gone_R, NEG_INF)
            ended_R |= gone_R & open_R
        ended = int(ended_R.sum())
        if not ended:
            continue
        open_R = open_R & ~ended_R
        left -= ended
        if left == 0:
            break
        if gone_R is not None or shrinks(left, len(open_R), device):
            _put(found, rows_R, (written_RT, total_R, closing_R))
            left_R = remaining(open_R, left)
            rows_R, tokens_R, open_R = rows_R[left_R], tokens_R[left_R], open_R[left_R]
            limits_R, written_RT = limits_R[left_R], written_RT[left_R]
            total_R, closing_R = total_R[left_R], closing_R[left_R]
            state.reorder(left_R)
            shaped.reorder(left_R)
    _put(found, rows_R, (written_RT, total_R, closing_R))
    written_RT, total_R, closing_R = found
    sizes_R = (written_RT != PAD).sum(dim=1)
    score_R = total_R / penalty(sizes_R, length_penalty) + closing_R
    each = hypotheses_of(
        score_R.view(batch, -1), written_RT.view(batch, copies, -1), total_R.view(batch, -1)
    )
    return [sorted(of_one, key=lambda h: -h.score) for of_one in each]


def _put(wholes: Sequence[Tensor], rows_R: Tensor, parts: Sequence[Tensor]) -> None:
    """Copy the values of some rows into the tensors of all rows."""
    for whole, part in zip(wholes, parts, strict=True):
        whole[rows_R] = part


def _finish(following: Following) -> list[list[Hypothesis]]:
    while True:
        try:
            next(following)
        except StopIteration as end:
            return list(end.value)
