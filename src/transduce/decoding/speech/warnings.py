"""Warnings for transcripts: repetition loops, skipped speech, attention that is not monotonic.

A decoder with attention can lose its place: it repeats a phrase, skips a stretch of speech, or does
not move along the audio at all. Its own score does not show this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Loop(NamedTuple):
    """tokens[start : start + length] occurs `times` times in a row; the last may be incomplete."""

    start: int
    length: int
    times: int


def find_loop(
    tokens: Sequence[int], times: int = 3, total: int = 12, longest: int = 50
) -> Loop | None:
    """The repetition that covers most tokens, if any; among ties, the shortest phrase.

    A phrase of up to `longest` tokens must occur at least `times` times and cover at least `total`
    tokens: "no, no, no" and "zero zero zero" do occur in speech.
    """
    if len(tokens) - len(set(tokens)) < total - total // times:  # too few come again
        return None
    best, covered = None, 0
    for length in range(1, min(longest, len(tokens) // times) + 1):
        start = 0
        for place in range(length, len(tokens) + 1):
            if place < len(tokens) and tokens[place] == tokens[place - length]:
                continue
            size = place - start
            if size >= max(times * length, total) and size > covered:
                best, covered = Loop(start, length, size // length), size
            start = place - length + 1
    return best


def skipped_spans(
    visited_S: Tensor, sounding_S: Tensor, maximum: int = 50
) -> list[tuple[int, int]]:
    """Skipped speech: unvisited spans of frames with more than `maximum` frames of sound.

    Both tensors are bool; sounding frames are found by loudness, as silence may be skipped.
    """
    visited = torch.cat((torch.tensor([True]), visited_S.cpu(), torch.tensor([True])))
    places = visited.nonzero().flatten() - 1
    sounds = torch.cat((torch.tensor([0]), sounding_S.cpu().cumsum(dim=0)))
    found = []
    for before, after in zip(places[:-1].tolist(), places[1:].tolist(), strict=True):
        if sounds[after] - sounds[before + 1] > maximum:
            found.append((before + 1, after))
    return found


def visited_by_tokens(first_U: Tensor, last_U: Tensor, frames: int, reach: int = 12) -> Tensor:
    """bool [S]: frames within `reach` of a token of an alignment; tokens at −1 are not aligned.

    CTC emits a token at one of the frames in which it is spoken, hence `reach`.
    """
    spoken = first_U >= 0
    visited_S = torch.zeros(frames, dtype=torch.bool)
    for first, last in zip(first_U[spoken].tolist(), last_U[spoken].tolist(), strict=True):
        visited_S[max(0, first - reach) : last + reach + 1] = True
    return visited_S


def diagonality(weights_BHTS: Tensor, target_lengths_B: Tensor, source_lengths_B: Tensor) -> Tensor:
    """Diagonality of attention: [B, H], from −1 to 1.

    The correlation of target and source position under the attention weights as joint
    distribution. Sharp monotonic attention has nearly 1; attention to one position or to all
    equally 0; attention that runs backwards is negative. With fewer than two tokens or frames it
    is 1.
    """
    T, S = weights_BHTS.shape[2:]
    device = weights_BHTS.device
    target_T, source_S = torch.arange(T, device=device), torch.arange(S, device=device)
    real_BT = target_T < target_lengths_B[:, None]
    real_BS = source_S < source_lengths_B[:, None]
    real_B1TS = (real_BT[:, :, None] & real_BS[:, None, :])[:, None]
    joint_BHTS = weights_BHTS.double().masked_fill(~real_B1TS, 0.0)
    joint_BHTS = joint_BHTS / joint_BHTS.sum(dim=(2, 3), keepdim=True).clamp(min=1e-30)
    by_target_BHT, by_source_BHS = joint_BHTS.sum(dim=3), joint_BHTS.sum(dim=2)
    t_T, s_S = target_T.double(), source_S.double()
    from_t_BHT = t_T - (by_target_BHT @ t_T)[..., None]
    from_s_BHS = s_S - (by_source_BHS @ s_S)[..., None]
    together_BH = ((joint_BHTS @ from_s_BHS[..., None])[..., 0] * from_t_BHT).sum(dim=-1)
    spread_t_BH = (by_target_BHT * from_t_BHT.square()).sum(dim=-1)
    spread_s_BH = (by_source_BHS * from_s_BHS.square()).sum(dim=-1)
    found_BH = together_BH / (spread_t_BH * spread_s_BH).sqrt().clamp(min=1e-9)
    too_short_B = (target_lengths_B < 2) | (source_lengths_B < 2)
    return found_BH.masked_fill(too_short_B[:, None], 1.0).to(weights_BHTS.dtype)
