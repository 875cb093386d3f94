"""CTC forced alignment of many short sequences at a time: a step for each frame, not for each of
every sequence. For long ones, and for texts that were not all said, see alignment.py.

    X states: a blank before, between and after the labels, and the labels
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
LOG_ZERO = -1e30  # ln 0, whose sums stay finite


class Emissions(NamedTuple):
    """ln p of a sequence's labels and of the blank at each frame."""

    labels_SU: Floats
    blank_S: Floats
    repeats_U: NDArray[np.bool_]
    """Whether a label is the same as the one before it: a blank must be between them."""


class Spans(NamedTuple):
    """Where the labels of a sequence are."""

    first_U: NDArray[np.int64]
    last_U: NDArray[np.int64]
    confidence_U: NDArray[np.float64]
    """The geometric mean of a label's probabilities at its frames."""


def align_batch(sequences: Sequence[Emissions]) -> list[Spans | None]:
    """The best path of each sequence; None for more labels than its frames can hold."""
    if not sequences:
        return []
    B = len(sequences)
    lengths = [len(one.blank_S) for one in sequences]
    labels = [len(one.repeats_U) for one in sequences]
    S, X = max(lengths, default=0), 2 * max(labels, default=0) + 1
    emission_SBX = np.full((S, B, X), LOG_ZERO, np.float64)
    leap_BX = np.full((B, X), LOG_ZERO, np.float64)  # from a label to the next without a blank
    for row, one in enumerate(sequences):
        emission_SBX[: lengths[row], row, 0 : 2 * labels[row] + 1 : 2] = one.blank_S[:, None]
        emission_SBX[: lengths[row], row, 1 : 2 * labels[row] : 2] = one.labels_SU
        leap_BX[row, 1 : 2 * labels[row] : 2] = np.where(one.repeats_U, LOG_ZERO, 0.0)
    back_SBX = np.zeros((S, B, X), np.int8)
    ends = np.full((B, 2), LOG_ZERO)
    from_3BX = np.full((3, B, X), LOG_ZERO)
    score_BX = np.full((B, X), LOG_ZERO)
    for s in range(S):
        if s == 0:
            score_BX[:, :2] = emission_SBX[0, :, :2]
        else:
            from_3BX[0] = score_BX
            from_3BX[1, :, 1:] = score_BX[:, :-1]
            from_3BX[2, :, 2:] = score_BX[:, :-2] + leap_BX[:, 2:]
            back_SBX[s] = from_3BX.argmax(axis=0)
            score_BX = from_3BX.max(axis=0) + emission_SBX[s]
        for row in range(B):
            if s == lengths[row] - 1:
                ends[row] = score_BX[row, 2 * labels[row]], score_BX[row, 2 * labels[row] - 1]
    return [
        _spans(back_SBX[: lengths[row], row], ends[row], one) for row, one in enumerate(sequences)
    ]


def _spans(back_SX: NDArray[np.int8], ends: NDArray[np.float64], one: Emissions) -> Spans | None:
    S, U = one.labels_SU.shape
    if not U:
        return Spans(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
    if ends.max() <= LOG_ZERO / 2:
        return None
    state = 2 * U - int(ends[1] > ends[0])
    path = np.empty(S, np.int64)
    for s in range(S - 1, -1, -1):
        path[s] = state
        state -= int(back_SX[s, state])
    said_S = path % 2 == 1
    frame_T, label_T = np.flatnonzero(said_S), path[said_S] // 2
    first_U, last_U = np.full(U, S), np.full(U, -1)
    np.minimum.at(first_U, label_T, frame_T)
    np.maximum.at(last_U, label_T, frame_T)
    sums_U = np.zeros(U)
    np.add.at(sums_U, label_T, one.labels_SU[frame_T, label_T].astype(np.float64))
    return Spans(first_U, last_U, np.exp(sums_U / (last_U - first_U + 1)))
