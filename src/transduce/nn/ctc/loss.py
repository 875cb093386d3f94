"""CTC (connectionist temporal classification): loss and greedy decoding.

Graves et al. 2006, https://www.cs.toronto.edu/~graves/icml_2006.pdf. Every frame has a label or a
blank; the labels of a sequence are those of its frames with repetitions merged and blanks removed.

    U labels
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


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

    Lengths are best on the CPU: torch needs them there and would otherwise synchronize with the
    device.

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
    loss_B = F.ctc_loss(
        logits_BSV.float().log_softmax(dim=-1).transpose(0, 1),
        targets_BT,
        lengths_B.clamp(min=1),  # zero frames are undefined on some devices
        target_lengths_B,
        blank,
        reduction="none",
        zero_infinity=True,  # of targets that do not fit: infinity would have a gradient of NaN
    )
    total = loss_B.where(fits_B, 0.0).sum()
    return CtcLoss(total, labels_B.where(fits_B, 0).sum(), (~fits_B).sum())


def frames_needed(targets_BT: Tensor, target_lengths_B: Tensor) -> Tensor:
    """The fewest frames that each row's targets need: one for each, and a blank between equal
    ones.
    """
    place_T = torch.arange(targets_BT.shape[1], device=targets_BT.device)[1:]
    again_BT = (targets_BT[:, 1:] == targets_BT[:, :-1]) & (place_T < target_lengths_B[:, None])
    return target_lengths_B + again_BT.sum(dim=1)


class CtcBest(NamedTuple):
    """Greedy CTC labels, padded with blanks to the longest row."""

    tokens_BU: Tensor
    counts_B: Tensor
    first_BU: Tensor
    """First frame of each label's run."""
    last_BU: Tensor
    """Last frame of each label's run, inclusive."""
    confidence_BU: Tensor
    """The label's mean probability over its run."""


def ctc_greedy(log_probs_BSV: Tensor, lengths_B: Tensor, blank: int = 0) -> CtcBest:
    """Greedy (best path) CTC decoding: the most probable label of every frame, merged, with
    times.
    """
    B, S, _ = log_probs_BSV.shape
    best_BS, label_BS = log_probs_BSV.max(dim=-1)
    frame_S = torch.arange(S, device=label_BS.device)
    label_BS = label_BS.masked_fill(frame_S >= lengths_B[:, None], blank)
    said_BS = label_BS != blank
    begins_BS = said_BS & (label_BS != F.pad(label_BS[:, :-1], (1, 0), value=blank))
    counts_B = begins_BS.sum(dim=1)
    U = int(counts_B.max()) if B else 0
    # Frames without a label go to an extra column, which is cut off again.
    column_BS = (begins_BS.cumsum(dim=1) - 1).masked_fill(~said_BS, U)

    def gathered(values_BS: Tensor, how: str, empty: int) -> Tensor:
        room_BU = values_BS.new_full((B, U + 1), empty)
        return room_BU.scatter_reduce(1, column_BS, values_BS, how)[:, :U]

    frame_BS = frame_S.expand(B, S)
    first_BU = gathered(frame_BS, "amin", S)
    last_BU = gathered(frame_BS, "amax", -1)
    length_BU = (last_BU - first_BU + 1).clamp(min=1)
    confidence_BU = gathered(best_BS.float().exp(), "sum", 0) / length_BU
    tokens_BU = gathered(label_BS, "amax", 0)
    missing_BU = torch.arange(U, device=label_BS.device) >= counts_B[:, None]
    return CtcBest(
        tokens_BU.masked_fill(missing_BU, blank),
        counts_B,
        first_BU.masked_fill(missing_BU, -1),
        last_BU,
        confidence_BU,
    )
