"""Speed perturbation: data augmentation that plays audio slower and lower, or faster and higher.

Ko et al. 2015, https://www.danielpovey.com/files/2015_interspeech_augmentation.pdf. Playing audio
at another speed is resampling, here by convolution, on the device of the samples.

    W samples of a waveform
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from transduce.nn.masks import readable

SPEEDS = (0.9, 1.0, 1.1)
CROSSINGS = 24  # zero crossings of the sinc filter on each side: how steep it is
ROLLOFF = 0.95  # cut-off, as a share of the Nyquist frequency of the result


def change_speed(samples_BW: Tensor, lengths_B: Tensor, speed: float) -> tuple[Tensor, Tensor]:
    """Waveforms [B, W] at `speed` times their speed, and their lengths ⌈length / speed⌉.

    Samples beyond a length are ignored, and zero in the result. Lengths may stay on the CPU.
    """
    device = samples_BW.device
    ratio = Fraction(speed).limit_denominator(100)
    if ratio <= 0:
        raise ValueError(f"speed must be above zero, not {speed}.")
    lengths_after_B = -(-lengths_B * ratio.denominator // ratio.numerator)
    place_W = torch.arange(samples_BW.shape[1], device=device)
    samples_BW = samples_BW.masked_fill(place_W >= lengths_B.to(device)[:, None], 0.0)
    if ratio == 1:
        return samples_BW, lengths_B
    size = -(-samples_BW.shape[1] * ratio.denominator // ratio.numerator)
    filters, reach = _filters(ratio.numerator, ratio.denominator)
    padded_BW = F.pad(samples_BW, (reach, reach + ratio.numerator))
    # One output channel for each sample of a period; interleaved they are the waveform. As a matrix
    # product: cuDNN would plan a convolution for each new batch size, and there are many.
    windows_BNA = padded_BW.unfold(1, filters.shape[1], ratio.numerator)
    with torch.autocast(samples_BW.device.type, enabled=False):
        made_BNP = windows_BNA @ _on_device(filters, samples_BW).t()
    made_BW = made_BNP.flatten(1)[:, :size]
    place_W = torch.arange(size, device=device)
    beyond_BW = place_W >= lengths_after_B.to(device)[:, None]
    return made_BW.masked_fill(beyond_BW, 0.0), lengths_after_B


def perturb_speed(
    samples_BW: Tensor,
    lengths_B: Tensor,
    generator: torch.Generator | None = None,
    speeds: Sequence[float] = SPEEDS,
) -> tuple[Tensor, Tensor]:
    """Each waveform at one of the speeds, drawn at random; `generator` is where the lengths are.

    Each waveform is resampled once; where the speeds drawn are not to be read, to all of them.
    """
    drawn_B = torch.randint(
        len(speeds), (len(samples_BW),), generator=generator, device=lengths_B.device
    )
    size = math.ceil(samples_BW.shape[1] / min(speeds)) + 1
    made_BW = samples_BW.new_zeros(len(samples_BW), size)
    lengths_after_B = torch.zeros_like(lengths_B)
    if not readable(lengths_B):
        for number, speed in enumerate(speeds):
            here_B = drawn_B == number
            all_BW, all_lengths_B = change_speed(samples_BW, lengths_B, speed)
            made_BW[:, : all_BW.shape[1]] += all_BW * here_B[:, None]
            lengths_after_B += all_lengths_B * here_B
        return made_BW, lengths_after_B
    for number, speed in enumerate(speeds):
        rows = (drawn_B == number).nonzero().flatten()
        if len(rows):
            there, of_lengths = rows.to(samples_BW.device), rows.to(lengths_B.device)
            part_BW, part_lengths_B = change_speed(samples_BW[there], lengths_B[of_lengths], speed)
            made_BW[there, : part_BW.shape[1]] = part_BW
            lengths_after_B[of_lengths] = part_lengths_B
    return made_BW, lengths_after_B


_ON_DEVICE: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}


def _on_device(filters: Tensor, like: Tensor) -> Tensor:
    """Filters as they were copied the first time: a CUDA graph cannot copy from the CPU."""
    key = (id(filters), like.device, like.dtype)  # of `_filters`, which keeps them
    if key not in _ON_DEVICE:
        _ON_DEVICE[key] = filters.to(like)
    return _ON_DEVICE[key]


@cache
def _filters(before: int, after: int) -> tuple[Tensor, int]:
    """Resampling filters from `before` samples to `after`: one for each output [after, taps], and
    the reach.

    A sinc with a Hann window, cut off below half of the lower rate, so that there is no aliasing.
    """
    cutoff = ROLLOFF * min(1.0, after / before)
    reach = math.ceil(CROSSINGS / cutoff)
    tap = torch.arange(-reach, reach + before, dtype=torch.float64)
    time = tap - torch.arange(after, dtype=torch.float64)[:, None] * before / after
    window = torch.cos(math.pi / 2 * (time * cutoff / CROSSINGS).clamp(-1, 1)).square()
    return cutoff * torch.sinc(cutoff * time) * window, reach
