"""Convolutional subsampling: strided convolutions that leave half, a quarter or an eighth of the
frames.

C channels   G bands that are left
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from transduce.nn.linear import linear

Frames = TypeVar("Frames", int, Tensor, NDArray[np.int64])

FACTORS = (2, 4, 8)


def reach_of(factor: int) -> int:
    """The receptive field in frames: two convolutions of 3, the second over every other frame; for
    a factor of 8 a third, over every fourth."""
    return 15 if factor == 8 else 7


def count_states(frames: Frames, factor: int = 4) -> Frames:
    """The number of output frames: h(h(T)) with h(n) = ⌊(n − 1)/2⌋, h(T) − 2 with a factor of 2,
    and h(h(h(T))) with 8; none for fewer than the convolutions see."""
    once = (frames - 1) // 2
    states = once - 2 if factor == 2 else (once - 1) // 2
    if factor == 8:
        states = (states - 1) // 2
    return states * (states > 0)


class Subsampling(nn.Module):
    """Two 3 × 3 convolutions with ReLU, then a linear layer to the model's width.

    One output frame for four input frames: Dong et al. 2018,
    https://ieeexplore.ieee.org/document/8462506; as in Gulati et al. 2020. Both have stride 2; for
    a factor of 2, the second goes along every frame. For a factor of 8 there is a third, with
    stride 2: over each channel, then over all channels of a place (depthwise-separable), as in
    Rekesh et al. 2023 (FastConformer), https://arxiv.org/abs/2305.05084. They are not padded:
    output frame t sees input frames 4t … 4t + 6, 2t … 2t + 6 or 8t … 8t + 14, no frame sees beyond
    the end, and so padding cannot leak into real frames.

    Args:
        bands: number of mel bands of the input; at least 7, or 15 for a factor of 8.
        width: width of the output.
        channels: of the convolutions; by default as many as the width.
        factor: 4; 2 for recordings with more tokens than a quarter of their frames; 8 for long ones
            with large tokens.
    """

    centred = False

    def __init__(
        self, bands: int, width: int, channels: int | None = None, factor: int = 4
    ) -> None:
        super().__init__()
        if factor not in FACTORS:
            raise ValueError(f"The factor of subsampling must be 2, 4 or 8, not {factor}.")
        self.factor, self.reach = factor, reach_of(factor)
        if bands < self.reach:
            raise ValueError(f"These convolutions need at least {self.reach} bands, not {bands}.")
        channels = width if channels is None else channels
        self.first = nn.Conv2d(1, channels, 3, stride=2)
        self.second = nn.Conv2d(channels, channels, 3, stride=(1 if factor == 2 else 2, 2))
        self.third = (
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, stride=2, groups=channels),
                nn.Conv2d(channels, channels, 1),
            )
            if factor == 8
            else None
        )
        self.projection = nn.Linear(channels * count_states(bands, max(factor, 4)), width)

    def count_frames(self, frames_B: Tensor) -> Tensor:
        """The number of output frames."""
        return count_states(frames_B, self.factor)

    def forward(self, mel_BTM: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, T, M] to vectors [B, S, D] and lengths_B; S is at least 1."""
        missing = max(0, self.reach - mel_BTM.shape[1])
        mel_BTM = F.pad(mel_BTM, (0, 0, 0, missing))
        x_BCSG = self._as_one_image(mel_BTM) if mel_BTM.is_cuda else self._convolve(mel_BTM)
        x_BSE = x_BCSG.transpose(1, 2).flatten(2)
        x_BSD = linear(x_BSE, self.projection.weight, self.projection.bias)
        return x_BSD, self.count_frames(frames_B)

    def _convolve(self, mel_BTM: Tensor) -> Tensor:
        x_BCTG = F.relu(self.first(mel_BTM.unsqueeze(1)))
        x_BCTG = F.relu(self.second(x_BCTG))
        return x_BCTG if self.third is None else F.relu(self.third(x_BCTG))

    def _as_one_image(self, mel_BTM: Tensor) -> Tensor:
        """The same with all rows one below the other, padded to one of few sizes.

        cuDNN plans a convolution for every new size, and hardly two batches of audio have the same
        size. A row begins at a multiple of the factor, so that its output begins with it; output
        frames that would see the next row's first frames lie beyond its end.
        """
        B, T, M = mel_BTM.shape
        each = self.factor * -(-T // self.factor)
        image_TM = F.pad(mel_BTM, (0, 0, 0, each - T)).view(B * each, M)
        beyond = few_sizes(B * each) - B * each + self.reach - 1
        x_1CSG = self._convolve(F.pad(image_TM, (0, 0, 0, beyond)).unsqueeze(0))
        _, C, _, G = x_1CSG.shape
        x_CBSG = x_1CSG[0, :, : B * each // self.factor].view(C, B, -1, G)
        return x_CBSG[:, :, : count_states(T, self.factor)].transpose(0, 1)


def few_sizes(size: int) -> int:
    """Round up to one of 16 sizes between any two powers of two, all multiples of 64."""
    step = max(64, 1 << max(size.bit_length() - 5, 0))
    return step * -(-size // step)
