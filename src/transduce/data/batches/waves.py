"""Waveforms of different lengths as one batch on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from transduce.data.audio.corpus import Wave


def pad_waves(waves: Sequence[Wave], device: torch.device) -> tuple[Tensor, Tensor]:
    """Samples [B, W] on the device, padded with zeros, and their lengths_B, on the CPU."""
    lengths_B = torch.tensor([len(wave) for wave in waves])
    flat_N = torch.from_numpy(np.concatenate([np.zeros(0, np.int16), *waves]))
    if device.type == "cuda":  # pinned memory: the copy waits for nothing the device is doing
        flat_N = flat_N.pin_memory()
    return pad_flat(flat_N.to(device, non_blocking=True), lengths_B), lengths_B


def pad_flat(flat_N: Tensor, lengths_B: Tensor) -> Tensor:
    """Sequences that lie one after the other as rows [B, W], on their device; lengths_B is on the
    CPU."""
    rows, longest = len(lengths_B), max(1, int(lengths_B.max()))
    if not flat_N.is_cuda:
        padded_BW = flat_N.new_zeros(rows, longest)
        for row_W, part in zip(padded_BW, torch.split(flat_N, lengths_B.tolist()), strict=True):
            row_W[: len(part)] = part
        return padded_BW
    return scattered(flat_N, lengths_B, longest)


def scattered(flat_N: Tensor, lengths_B: Tensor, longest: int) -> Tensor:
    """The same in a few operations, however many rows there are; nothing waits for the device."""
    place_W = torch.arange(longest, device=flat_N.device)
    there_BW = place_W < lengths_B.to(flat_N.device, non_blocking=True)[:, None]
    padded_BW = flat_N.new_zeros(there_BW.shape)
    return padded_BW.masked_scatter_(there_BW, flat_N)
