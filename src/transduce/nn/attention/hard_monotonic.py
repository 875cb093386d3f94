"""Exact hard monotonic attention: one source position for each token, which never goes back.

    p(y | x) = Σ_a Π_t p(a_t | a_{t−1}, y_{<t}) · p(y_t | a_t, y_{<t}),   a_1 ≤ a_2 ≤ … ≤ a_T

(Wu and Cotterell 2019, https://aclanthology.org/P19-1148). The sum over all alignments is computed
by the forward algorithm, in order: from p(a_{t−1} | y_{<t}) come p(a_t | y_{<t}), the token's
distribution, and, once the token is known, p(a_t | y_{≤t}). So a decoder can be asked token by
token, as any other.

Here a_t is drawn from the positions from a_{t−1} on, in proportion to exp(score).
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = -1e9
"""A log-probability of nothing that leaves gradients finite."""


def first_alignment(scores_BS: Tensor) -> Tensor:
    """log p(a_0)_BS: before the first token, attention stands at the first position."""
    start_BS = torch.full_like(scores_BS, NEVER)
    start_BS[:, 0] = 0.0
    return start_BS


def move(before_BS: Tensor, scores_BS: Tensor) -> Tensor:
    """log p(a_t | y_{<t})_BS from log p(a_{t−1} | y_{<t})_BS and the scores of the positions.

    p(a_t = j) = e^{s_j} · Σ_{i ≤ j} p(a_{t−1} = i) / Σ_{k ≥ i} e^{s_k}
    """
    ahead_BS = scores_BS.flip(1).logcumsumexp(dim=1).flip(1)
    return scores_BS + (before_BS - ahead_BS).logcumsumexp(dim=1)


def observe(prior_BS: Tensor, emitted_BS: Tensor) -> Tensor:
    """log p(a_t | y_{≤t})_BS from log p(a_t | y_{<t})_BS and log p(y_t | a_t)_BS."""
    joint_BS = prior_BS + emitted_BS.clamp(min=NEVER)
    return joint_BS - joint_BS.logsumexp(dim=1, keepdim=True)


def align(scores_BTS: Tensor, emitted_BTS: Tensor) -> Tensor:
    """log p(a_t | y_{<t})_BTS of given targets.

    emitted_BTS: log p(y_t | a_t), of the tokens that were written; that of the last is not used.
    """
    at_BS, found = first_alignment(scores_BTS[:, 0]), []
    for scores_BS, emitted_BS in zip(scores_BTS.unbind(1), emitted_BTS.unbind(1), strict=True):
        prior_BS = move(at_BS, scores_BS)
        found.append(prior_BS)
        at_BS = observe(prior_BS, emitted_BS)
    return torch.stack(found, dim=1)


def marginal(prior_BTS: Tensor, emission_BTSX: Tensor) -> Tensor:
    """log p(y_t | y_{<t})_BTX: the emissions of all positions, by how likely each is."""
    joint_BTSX = prior_BTS[..., None] + emission_BTSX.clamp(min=NEVER)
    possible_BTX = (emission_BTSX > NEVER).any(dim=2)
    return torch.where(possible_BTX, joint_BTSX.logsumexp(dim=2), -torch.inf)
