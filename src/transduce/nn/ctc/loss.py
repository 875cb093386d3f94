"""CTC (connectionist temporal classification): the loss, and the consistency of CR-CTC.

Graves et al. 2006, https://www.cs.toronto.edu/~graves/icml_2006.pdf. Every frame has a label or a
blank; the labels of a sequence are those of its frames with repetitions merged and blanks removed.

    U labels
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.masks import readable


class CtcLoss(NamedTuple):
    """Sums over a batch; for a mean, add up batches first, then divide by `tokens`."""

    total: Tensor
    """−Σ ln p(targets | frames), differentiable."""
    tokens: Tensor
    """Target tokens that were counted."""
    impossible: Tensor
    """Utterances left out of both: they have fewer frames than their targets need."""


def ctc_loss(
    logits_BSV: Tensor,
    lengths_B: Tensor,
    targets_BT: Tensor,
    target_lengths_B: Tensor,
    blank: int = 0,
) -> CtcLoss:
    """CTC loss: −log of the sum over all alignments of the targets with the frames.

    Lengths are best on the CPU, where torch's kernel needs them. On a device nothing reads them, as
    in a CUDA graph: the sums are then taken step by step, in small kernels.

    Args:
        logits_BSV: logits of each frame.
        lengths_B: how many frames of each row count.
        targets_BT: the right tokens; none of them may be the blank.
        target_lengths_B: how many tokens of each row count.
        blank: the token that stands for no output.
    """
    device = logits_BSV.device
    frames_B, labels_B = (
        x_B.to(device, non_blocking=True) for x_B in (lengths_B, target_lengths_B)
    )
    fits_B = (frames_needed(targets_BT, labels_B) <= frames_B) & (frames_B > 0)
    log_probs_BSV = logits_BSV.float().log_softmax(dim=-1)
    if readable(lengths_B):
        loss_B = F.ctc_loss(
            log_probs_BSV.transpose(0, 1),
            targets_BT,
            lengths_B.clamp(min=1),  # zero frames are undefined on some devices
            target_lengths_B,
            blank,
            reduction="none",
            zero_infinity=True,  # of targets that do not fit: infinity has a gradient of NaN
        )
    else:
        loss_B = stepwise_ctc(log_probs_BSV, frames_B, targets_BT, labels_B, blank)
    total = loss_B.where(fits_B, 0.0).sum()
    return CtcLoss(total, labels_B.where(fits_B, 0).sum(), (~fits_B).sum())


def consistency_loss(logits_BSV: Tensor, lengths_B: Tensor) -> Tensor:
    """CR-CTC's consistency: how far the frames' distributions are apart in two views of a batch.

    Σ ½ (KL(q‖p) + KL(p‖q)) over all frames, where p and q are the distributions of one frame in
    both views; each is drawn to the other as it is: the target of a divergence, its left side, has
    no gradient. Yao et al. 2024, https://arxiv.org/abs/2410.05101, equation 5.

    Args:
        logits_BSV: logits of each frame; the second half of the rows is the second view of the
            first.
        lengths_B: how many frames of each row count.
    """
    log_p_BSV = logits_BSV.float().log_softmax(dim=-1)
    log_q_BSV = log_p_BSV.detach().roll(len(log_p_BSV) // 2, dims=0)
    apart_BS = (log_q_BSV.exp() * (log_q_BSV - log_p_BSV)).sum(dim=-1)
    frame_S = torch.arange(apart_BS.shape[1], device=apart_BS.device)
    counted_BS = frame_S < lengths_B.to(apart_BS.device, non_blocking=True)[:, None]
    return apart_BS.where(counted_BS, 0.0).sum() / 2


def stepwise_ctc(
    log_probs_BSV: Tensor, lengths_B: Tensor, targets_BT: Tensor, labels_B: Tensor, blank: int
) -> Tensor:
    """−ln p(targets) of each row, by torch's own operations; 0 where targets do not fit.

    Nothing depends on the numbers in lengths_B and labels_B but the result: no kernel waits to
    learn them.
    """
    loss_B: Tensor = _Stepwise.apply(  # type: ignore[no-untyped-call]
        log_probs_BSV, lengths_B, targets_BT, labels_B, blank
    )
    return loss_B


def occupancy(
    log_probs_BSV: Tensor, lengths_B: Tensor, targets_BT: Tensor, labels_B: Tensor, blank: int
) -> Occupancy:
    """How likely each state is at each place of the targets, over all alignments.

    From forward and backward sums α and β (Graves et al. 2006, section 4.1). β is α of the sequence
    read from its end, so that one loop computes them. Nothing is where targets do not fit.

    L places of the targets with a blank before, between and after: 2 T + 1.
    """
    B, S, _ = log_probs_BSV.shape
    T = targets_BT.shape[1]
    place_L = torch.arange(2 * T + 1, device=targets_BT.device)
    label_BL = targets_BT.new_full((B, 2 * T + 1), blank)
    label_BL[:, 1::2] = targets_BT
    last_B1 = 2 * labels_B[:, None]
    label_BL = label_BL.masked_fill(place_L >= last_B1, blank)
    # As they are, and from the end: rows of 2 B.
    back_BL = (last_B1 - place_L).clamp(min=0)
    label_2BL = torch.cat((label_BL, label_BL.gather(1, back_BL).where(back_BL > 0, blank)))
    frame_S = torch.arange(S, device=targets_BT.device)
    back_BS = (lengths_B[:, None] - 1 - frame_S).clamp(min=0)
    said_BSL = log_probs_BSV.gather(2, label_BL[:, None].expand(B, S, -1))
    turned_BSV = log_probs_BSV.gather(1, back_BS[..., None].expand_as(log_probs_BSV))
    turned_BSL = turned_BSV.gather(2, label_2BL[B:, None].expand(B, S, -1))
    alpha_2BSL = _forward_sums(torch.cat((said_BSL, turned_BSL)), label_2BL, blank)
    # β in the order of α again: frame s is frame length − 1 − s from the end, and so on.
    beta_BSL = alpha_2BSL[B:].gather(1, back_BS[..., None].expand(B, S, 2 * T + 1))
    beta_BSL = beta_BSL.gather(2, back_BL[:, None].expand(B, S, -1))
    both_BSL = alpha_2BSL[:B] + beta_BSL - said_BSL
    there_BL = place_L <= last_B1
    never_BSL = ~there_BL[:, None] | (said_BSL == -torch.inf)
    both_BSL = both_BSL.masked_fill(never_BSL, -torch.inf)
    total_B = both_BSL[:, 0].logsumexp(dim=1)  # the same at every frame
    fits_B = total_B.isfinite() & (lengths_B > 0)
    share_BSL = (both_BSL - total_B[:, None, None]).exp()
    counted_BS = (frame_S < lengths_B[:, None]) & fits_B[:, None]
    share_BSL = share_BSL.where(counted_BS[..., None], 0.0)
    return Occupancy(share_BSL, label_BL, total_B.where(fits_B, 0.0))


def token_posteriors(log_probs_SV: Tensor, targets_T: Tensor, blank: int = 0) -> Tensor:
    """[T, S]: how likely each token is said at each frame, given that all of them are said; zeros
    where there are fewer frames than they need."""
    lengths = torch.tensor([len(log_probs_SV)]), torch.tensor([len(targets_T)])
    found = occupancy(log_probs_SV[None], lengths[0], targets_T[None], lengths[1], blank)
    return found.share_BSL[0, :, 1::2].T


class Occupancy(NamedTuple):
    """What `occupancy` finds."""

    share_BSL: Tensor
    label_BL: Tensor
    """The label of each place."""
    log_probability_B: Tensor
    """ln p(targets)."""


class _Stepwise(torch.autograd.Function):
    """The gradient of −ln p(targets) by the logarithm of a probability is minus its occupancy."""

    @staticmethod
    def forward(
        ctx: Any,
        log_probs_BSV: Tensor,
        lengths_B: Tensor,
        targets_BT: Tensor,
        labels_B: Tensor,
        blank: int,
    ) -> Tensor:
        found = occupancy(log_probs_BSV, lengths_B, targets_BT, labels_B, blank)
        by_BSV = torch.zeros_like(log_probs_BSV)
        label_BSL = found.label_BL[:, None].expand_as(found.share_BSL)
        by_BSV.scatter_add_(2, label_BSL, -found.share_BSL)
        ctx.save_for_backward(by_BSV)
        return -found.log_probability_B

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (by_BSV,) = ctx.saved_tensors
        return by_BSV * gradients[0][:, None, None], None, None, None, None


def _forward_sums(said_BSL: Tensor, label_BL: Tensor, blank: int) -> Tensor:
    """α_s(l), the log-probability of the frames up to s on all paths that are at place l then."""
    B, S, L = said_BSL.shape
    # A blank may be skipped between two different labels.
    skips_BL = (label_BL[:, 2:] != blank) & (label_BL[:, 2:] != label_BL[:, :-2])
    skip_BL = F.pad(torch.zeros_like(said_BSL[:, 0, 2:]).where(skips_BL, -torch.inf), (2, 0))
    skip_BL[:, :2] = -torch.inf
    # Two places before the first, of probability 0.
    padded_BSL = said_BSL.new_full((B, S, L + 2), -torch.inf)
    alpha_BSL = padded_BSL[..., 2:]
    alpha_BSL[:, 0, :2] = said_BSL[:, 0, :2]
    for frame in range(1, S):
        before_BL = padded_BSL[:, frame - 1]
        sums_BL = torch.logaddexp(before_BL[:, 2:], before_BL[:, 1:-1])
        sums_BL = torch.logaddexp(sums_BL, before_BL[:, :-2] + skip_BL)
        torch.add(sums_BL, said_BSL[:, frame], out=alpha_BSL[:, frame])
    return alpha_BSL


def frames_needed(targets_BT: Tensor, target_lengths_B: Tensor) -> Tensor:
    """The fewest frames that each row's targets need: one for each, and a blank between equal
    ones.
    """
    place_T = torch.arange(targets_BT.shape[1], device=targets_BT.device)[1:]
    again_BT = (targets_BT[:, 1:] == targets_BT[:, :-1]) & (place_T < target_lengths_B[:, None])
    return target_lengths_B + again_BT.sum(dim=1)
