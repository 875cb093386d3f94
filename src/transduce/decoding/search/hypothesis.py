"""What greedy search, sampling and beam search share: hypotheses, their scores, and top k.

The score of a hypothesis is its log-probability divided by ((5 + length) / 6) ** length_penalty
(Wu et al. 2016), where length includes END, plus the penalties of constraints at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import END
from transduce.decoding.search.rules import NEG_INF
from transduce.runtime import top_k_scores

BLOCK = 64  # scores per block, of which the maximum is found first,
MANY = 1 << 15  # from this many scores on


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
    """The hypotheses of each row; a score of NEG_INF marks an empty place."""
    return [
        [
            Hypothesis(tokens[: tokens.index(END)], score, total)
            for score, tokens, total in zip(*row, strict=True)
            if score > NEG_INF
        ]
        for row in zip(score_BN.tolist(), tokens_BNT.tolist(), total_BN.tolist(), strict=True)
    ]


# ------------------------------------------------------------------------------------- top k


def best(scores_RX: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Top k: each row's highest scores_RC and their indices_RC, the highest first.

    On a CPU, ties go to the lowest index; NaN counts as NEG_INF. The C library and torch give the
    same result.
    """
    found = top_k_scores(scores_RX, count)
    if found is not None:
        return found
    if scores_RX.device.type == "cpu":
        return best_by_torch(scores_RX, count)
    scores_RX = scores_RX.nan_to_num(nan=NEG_INF, posinf=torch.inf, neginf=NEG_INF)
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
        clean_RX = scores_RX.nan_to_num(nan=NEG_INF, posinf=torch.inf, neginf=NEG_INF)
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
