"""The lattice of a transducer: all alignments of labels with encoder states.

Graves 2012, https://arxiv.org/abs/1211.3711. At state s with the first u labels emitted, the next
is label u + 1, which stays at s, or a blank, which goes on to state s + 1. An alignment is a path
from (0, 0) to the blank at the last state after the last label.

    U labels   P = U + 1 places in them   R rows: batches, forwards and backwards
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NEG_INF = -torch.inf


class Lattice(NamedTuple):
    """The log-probabilities of the two ways on from each node; `label_BSP` has nothing that counts
    at the last place. Lengths are where the other tensors are."""

    blank_BSP: Tensor
    label_BSP: Tensor
    lengths_B: Tensor
    """States of each row."""
    labels_B: Tensor
    """Labels of each row."""

    @classmethod
    def of(
        cls,
        log_probs_BSPV: Tensor,
        lengths_B: Tensor,
        targets_BU: Tensor,
        labels_B: Tensor,
        blank: int = 0,
    ) -> Lattice:
        """From the log-probabilities of all tokens at each node."""
        return cls(
            log_probs_BSPV[..., blank],
            log_probs_BSPV.gather(3, wanted(targets_BU, log_probs_BSPV))[..., 0],
            lengths_B.to(log_probs_BSPV.device, non_blocking=True),
            labels_B.to(log_probs_BSPV.device, non_blocking=True),
        )


def wanted(targets_BU: Tensor, log_probs_BSPV: Tensor) -> Tensor:
    """The next label at each node, [B, S, P, 1]; any at the last place."""
    B, S, P, _ = log_probs_BSPV.shape
    return F.pad(targets_BU, (0, 1))[:, None, :, None].expand(B, S, P, 1).long()


class Sums(NamedTuple):
    """Sums over the paths of a lattice, as logarithms."""

    before_BSP: Tensor
    """α: over the paths from the start to each node."""
    after_BSP: Tensor
    """β: over the paths from each node to the end, the last blank included."""
    total_B: Tensor
    """ln p(labels)."""


def both_sums(lattice: Lattice) -> Sums:
    """α and β. β is α of the lattice that is turned round, so that one loop computes both."""
    blank_BSP, label_BSP, lengths_B, labels_B = lattice
    B, S, P = blank_BSP.shape
    # From a node to the one before it: the weight of that step is the one that stands at the node.
    back_BS1 = lengths_B[:, None, None] - 1 - torch.arange(S, device=lengths_B.device)[:, None]
    back_B1P = labels_B[:, None, None] - torch.arange(P, device=lengths_B.device)
    turned = back_BS1.clamp(min=0), back_B1P.clamp(min=0)
    row_B11 = torch.arange(B, device=lengths_B.device)[:, None, None]
    across_BSP, up_BSP = _entering(lattice)
    sums_RSP = _sums(
        torch.cat((across_BSP, blank_BSP[(row_B11, *turned)])),
        torch.cat((up_BSP, label_BSP[(row_B11, *turned)])),
    )
    row_B = torch.arange(B, device=lengths_B.device)
    last_B = blank_BSP[row_B, lengths_B - 1, labels_B]
    before_BSP, backwards_BSP = sums_RSP[:B], sums_RSP[B:]
    after_BSP = backwards_BSP[(row_B11, *turned)] + last_B[:, None, None]
    outside_BSP = (back_BS1 < 0) | (back_B1P < 0)
    after_BSP = after_BSP.masked_fill(outside_BSP, NEG_INF)
    return Sums(before_BSP, after_BSP, after_BSP[:, 0, 0])


class Steps(NamedTuple):
    """How probable each step from a node is, among all alignments of the labels."""

    by_blank_BSP: Tensor
    by_label_BSP: Tensor
    total_B: Tensor
    """ln p(labels)."""


def steps(lattice: Lattice) -> Steps:
    """The share of the alignments that take each step; of each label they add up to 1."""
    before_BSP, after_BSP, total_B = both_sums(lattice)
    row_B = torch.arange(len(total_B), device=total_B.device)
    # β where a blank leads to, the next state, and where a label does.
    next_BSP = F.pad(after_BSP, (0, 0, 0, 1), value=NEG_INF)[:, 1:]
    next_BSP[row_B, lattice.lengths_B - 1, lattice.labels_B] = 0.0  # everything is said
    above_BSP = F.pad(after_BSP, (0, 1), value=NEG_INF)[..., 1:]
    from_BSP = before_BSP - total_B[:, None, None]
    by_blank_BSP = (from_BSP + lattice.blank_BSP + next_BSP).exp()
    return Steps(by_blank_BSP, (from_BSP + lattice.label_BSP + above_BSP).exp(), total_B)


def forward_sums(lattice: Lattice) -> Tensor:
    """α of each node."""
    return _sums(*_entering(lattice))


def total_log_prob(lattice: Lattice) -> Tensor:
    """ln p(labels) of each row."""
    return _at_end(lattice, forward_sums(lattice))


def label_log_probs(lattice: Lattice) -> Tensor:
    """ln p of each label after those before it, and of the end after the last one, [B, P].

    An output begins with the first u labels with the probability that label u is emitted at any
    state, after those before it; the quotients of these are the probabilities of each label. They
    add up to ln p(labels). Beyond a row's end they are 0.
    """
    blank_BSP, label_BSP, lengths_B, labels_B = lattice
    before_BSP = forward_sums(lattice)
    S, P = blank_BSP.shape[1:]
    place_S = torch.arange(S, device=lengths_B.device)
    real_BS1 = (place_S < lengths_B[:, None])[..., None]
    begins_BP = (before_BSP + label_BSP).masked_fill(~real_BS1, NEG_INF).logsumexp(dim=1)
    place_P = torch.arange(P, device=lengths_B.device)
    total_B1 = _at_end(lattice, before_BSP)[:, None]
    begins_BP = torch.where(place_P < labels_B[:, None], begins_BP, total_B1)
    return torch.diff(begins_BP, dim=1, prepend=torch.zeros_like(total_B1))


def best_path(lattice: Lattice) -> list[list[int]]:
    """The state at which each label is emitted on the most probable path, of each row."""
    across_BSP, up_BSP = _entering(lattice)
    best_BSP = _sums(across_BSP, up_BSP, torch.maximum)
    # Whether the best way to a node is by a label.
    by_label_BSP = F.pad(best_BSP, (1, 0))[..., :-1] + up_BSP >= (
        F.pad(best_BSP, (0, 0, 1, 0))[:, :-1] + across_BSP
    )
    found = []
    for row, (state, place) in enumerate(
        zip((lattice.lengths_B - 1).tolist(), lattice.labels_B.tolist(), strict=True)
    ):
        by_label = by_label_BSP[row].tolist()
        frames = []
        while place:
            if state == 0 or by_label[state][place]:
                frames.append(state)
                place -= 1
            else:
                state -= 1
        found.append(frames[::-1])
    return found


def _at_end(lattice: Lattice, before_BSP: Tensor) -> Tensor:
    row_B = torch.arange(len(before_BSP), device=before_BSP.device)
    end = row_B, lattice.lengths_B - 1, lattice.labels_B
    return before_BSP[end] + lattice.blank_BSP[end]


def _entering(lattice: Lattice) -> tuple[Tensor, Tensor]:
    """The log-probability of the blank, and of the label, by which a path comes to each node."""
    across_BSP = F.pad(lattice.blank_BSP, (0, 0, 1, 0), value=NEG_INF)[:, :-1]
    up_BSP = F.pad(lattice.label_BSP, (1, 0), value=NEG_INF)[..., :-1]
    return across_BSP, up_BSP


def _sums(
    across_RSP: Tensor, up_RSP: Tensor, add: Callable[[Tensor, Tensor], Tensor] = torch.logaddexp
) -> Tensor:
    """The sum over all paths from (0, 0) to each node, of steps that cost what stands at the node
    they lead to. Nodes of one anti-diagonal depend on the one before alone, and are one step.
    """
    R, S, P = across_RSP.shape
    device = across_RSP.device
    place_P = torch.arange(P, device=device)
    state_LP = torch.arange(S + P - 1, device=device)[:, None] - place_P
    real_LP = (state_LP >= 0) & (state_LP < S)
    index_LP = state_LP.clamp(0, S - 1)
    across_LRP, up_LRP = (
        x_RSP[:, index_LP, place_P].masked_fill(~real_LP, NEG_INF).transpose(0, 1).contiguous()
        for x_RSP in (across_RSP, up_RSP)
    )
    # One place before the first, which no path comes from.
    padded_LRP = across_RSP.new_full((S + P - 1, R, P + 1), NEG_INF)
    padded_LRP[0, :, 1] = 0.0
    for step in range(1, S + P - 1):
        before_RP = padded_LRP[step - 1]
        padded_LRP[step, :, 1:] = add(
            before_RP[:, 1:] + across_LRP[step], before_RP[:, :-1] + up_LRP[step]
        )
    diagonal_SP = torch.arange(S, device=device)[:, None] + place_P
    return padded_LRP[diagonal_SP, :, place_P + 1].permute(2, 0, 1)
