"""Greedy search and sampling, batched, for any model that can start and step.

The score of a hypothesis is its log-probability divided by ((5 + length) / 6) ** length_penalty
(Wu et al. 2016), where length includes END, plus the penalties of constraints at its end. Rows
never influence each other. Constraints (see decoding/constraints) say which tokens may come next;
they never change log-probabilities. Beam search is in beam.py.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.constraints.constraint import NEVER, Constraint, Constraints
from transduce.decoding.search.observer import SearchObserver
from transduce.decoding.search.rules import at_limit
from transduce.models.decoders import DecoderState
from transduce.runtime import top_k_scores

BLOCK = 64  # scores per block, of which the maximum is found first,
MANY = 1 << 15  # from this many scores on

Choose = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
Following = Generator[Tensor, None, list[list["Hypothesis"]]]


class Stepper(Protocol):
    """The interface of a model that search needs."""

    def start(self, source_BS: Tensor, lengths_B: Tensor) -> DecoderState: ...

    def step(self, tokens_B: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """Log-probabilities_BV of the next token; search or the next step may overwrite them."""


@dataclass(slots=True)
class Hypothesis:
    """One hypothesis: its tokens without BEGIN and END, its score and log-probability."""

    tokens: list[int]
    score: float
    log_probability: float


def penalty(length: Tensor | int, power: float) -> Tensor:
    """((5 + length) / 6) ** power.

    In float64: torch's power in float32 depends on where in a tensor a number stands.
    """
    base = torch.as_tensor((5.0 + length) / 6.0)
    exact = base if base.device.type == "mps" else base.double()  # which has no float64
    return exact.pow(power).to(base.dtype)


# ------------------------------------------------------------------------- greedy and sampling


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


def best(scores_RX: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Top k: each row's highest scores_RC and their indices_RC, the highest first.

    On a CPU, ties go to the lowest index; NaN counts as NEVER. The C library and torch give the
    same result.
    """
    found = top_k_scores(scores_RX, count)
    if found is not None:
        return found
    if scores_RX.device.type == "cpu":
        return best_by_torch(scores_RX, count)
    scores_RX = scores_RX.nan_to_num(nan=NEVER, posinf=torch.inf, neginf=NEVER)
    return scores_RX.max(dim=-1, keepdim=True) if count == 1 else scores_RX.topk(count, dim=-1)


def best_by_torch(scores_RX: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The result of `best` on a CPU, by torch.

    Finding a maximum is several times as fast as finding its index: so only the blocks with the
    highest maxima are searched.
    """
    R, X = scores_RX.shape
    whole = X - X % BLOCK
    if scores_RX.numel() < MANY or whole <= 4 * count * BLOCK:
        return _first_highest(scores_RX, count)
    highest_RN = scores_RX[:, :whole].reshape(R, -1, BLOCK).amax(dim=-1)
    if bool(highest_RN.isnan().any()):  # the maximum of a block with NaN is NaN
        return _first_highest(scores_RX, count)
    # In index order, so that the first of equal scores is found.
    block_RC = _first_highest(highest_RN, count)[1].sort(dim=-1).values
    inside_RX = (block_RC[:, :, None] * BLOCK + torch.arange(BLOCK)).flatten(1)
    place_RX = torch.cat([inside_RX, torch.arange(whole, X).expand(R, -1)], dim=1)
    found_RC, at_RC = _first_highest(scores_RX.gather(1, place_RX), count)
    return found_RC, place_RX.gather(1, at_RC)


def _first_highest(scores_RX: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Top k by torch alone, whose topk breaks ties arbitrarily and takes NaN for the maximum."""
    if count == 1:  # by max, several times as fast as argmax; it takes the first of equals
        found_R1, place_R1 = scores_RX.max(dim=-1, keepdim=True)
        tied = False
    else:
        # One more: if it equals the last, there may be further ties anywhere.
        more = min(count + 1, scores_RX.shape[1])
        found_RC, place_RC = scores_RX.topk(more, dim=-1)
        found_R1 = found_RC[:, :1]
        tied = bool((found_RC[:, 1:] == found_RC[:, :-1]).any())
    if bool(found_R1.isnan().any()):
        clean_RX = scores_RX.nan_to_num(nan=NEVER, posinf=torch.inf, neginf=NEVER)
        return _first_highest(clean_RX, count)
    if count == 1:
        return found_R1, place_R1
    found_RC, place_RC = found_RC[:, :count].contiguous(), place_RC[:, :count].contiguous()
    if not tied:
        return found_RC, place_RC
    # The first indices that hold the lowest score found; all scores above it are found already.
    lowest_R1 = found_RC[:, -1:]
    X = scores_RX.shape[1]
    order_X = torch.arange(X, 0, -1, dtype=torch.int32)
    place_RX = torch.where(scores_RX == lowest_R1, order_X, 0).topk(count, dim=-1).indices
    above_RC = found_RC > lowest_R1
    rank_RC = torch.arange(count) - above_RC.sum(dim=-1, keepdim=True)
    place_RC = torch.where(above_RC, place_RC, place_RX.gather(1, rank_RC.clamp(min=0)))
    # Ties in index order.
    place_RC, first_RC = place_RC.sort(dim=-1)
    found_RC, rank_RC = found_RC.gather(1, first_RC).sort(dim=-1, descending=True, stable=True)
    return found_RC, place_RC.gather(1, rank_RC)


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
        tokens_R, log_probs_R = choose(log_probs_RV, rows_R, step)
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
        ended_R = (tokens_R == END) | ~(log_probs_R > NEVER)
        if gone_R is not None:
            total_R = total_R.masked_fill(gone_R, NEVER)
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


def shrinks(left: int, rows: int, device: torch.device) -> bool:
    """Whether to drop finished rows from the batch now. On a CPU every row costs time, but so does
    a new batch size; on a GPU rows are cheap, so it waits until half are done."""
    return 8 * left <= 7 * rows if device.type == "cpu" else 2 * left <= rows


def remaining(open_R: Tensor, left: int) -> Tensor:
    """The indices of open rows, the last of them in place of finished ones, so that few rows have
    to move."""
    still_R = open_R.nonzero().squeeze(1)
    index_R = torch.arange(left, device=open_R.device)
    index_R[~open_R[:left]] = still_R[still_R >= left]
    return index_R


def hypotheses_of(score_BN: Tensor, tokens_BNT: Tensor, total_BN: Tensor) -> list[list[Hypothesis]]:
    """The hypotheses of each row; a score of NEVER marks an empty place."""
    return [
        [
            Hypothesis(tokens[: tokens.index(END)], score, total)
            for score, tokens, total in zip(*row, strict=True)
            if score > NEVER
        ]
        for row in zip(score_BN.tolist(), tokens_BNT.tolist(), total_BN.tolist(), strict=True)
    ]
