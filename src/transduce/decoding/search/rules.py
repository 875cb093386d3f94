"""What every search obeys, whatever its constraints: the rules of padding, begin, end and lengths.

Padding and BEGIN are never written; END does not come before the minimum length; at the maximum
length nothing but END does. Greedy search, sampling, beam search and the slots by torch apply these
functions. The kernels of slots in Triton and C state the same rules; one test compares
all of them (tests/unit/decoding/search/test_rules.py).

Scores are log-probabilities or logits of the next token, changed in place. Nothing here has a shape
that depends on values or waits for a device, so that it can be part of a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from transduce.data.tokens.tokenizer import BEGIN, END, PAD

NEG_INF = float("-inf")


def too_early(length: int | Tensor, minimum: int) -> bool | Tensor:
    """Whether an output of `length` tokens may not end yet. minimum: the minimum, with END."""
    return length + 1 < minimum


def at_limit(length: int | Tensor, limit_R: Tensor) -> Tensor:
    """Whether END has to come after `length` tokens. limit_R: the maximum length, with END."""
    return limit_R <= length + 1


def cut(scores_RV: Tensor, rows_R: Tensor, score_R: Tensor | float = 0.0) -> None:
    """END has this score in these rows: what is cut off at its maximum length, though END could
    not come there, does not pay for END. For log-probabilities 0, for logits their log-sum-exp."""
    scores_RV[:, END] = torch.where(rows_R, score_R, scores_RV[:, END])


def obey(scores_RV: Tensor, early: bool | Tensor, last_R: Tensor | None) -> None:
    """Write NEG_INF where a token may not come next.

    early: whether it is too early to end, of each row or of all. last_R: the rows at their maximum
    length; None: no row is.
    """
    scores_RV[:, PAD : BEGIN + 1 : BEGIN - PAD] = NEG_INF  # both in one call
    if last_R is not None:
        end_R = scores_RV[:, END].clone()
        scores_RV.masked_fill_(last_R[:, None], NEG_INF)
        scores_RV[:, END] = end_R
    if isinstance(early, Tensor):
        scores_RV[:, END].masked_fill_(early, NEG_INF)
    elif early:
        scores_RV[:, END] = NEG_INF
