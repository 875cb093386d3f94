"""Fewer, wider frames: convolutions over time and frequency that leave a quarter of the frames.

C channels    G bands that are left
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from transduce.nn.linear import linear

FACTOR = 4
REACH = (
    7  # frames that one frame afterwards sees: two convolutions of 3, the second over every other
)


class Subsampling(nn.Module):
    """Two 3 × 3 convolutions with stride 2 and max(0, ·), then a linear layer to the model's width.

    Dong et al. 2018, https://ieeexplore.ieee.org/document/8462506; as in Gulati et al. 2020. The
    convolutions are not padded: frame t afterwards sees frames 4t … 4t + 6 before, no frame sees
    beyond the end, and so padding cannot leak into what is real.
    """

    def __init__(self, bands: int, width: int, channels: int | None = None) -> None:
        super().__init__()
        if bands < REACH:
            raise ValueError(f"Two convolutions of 3 need at least {REACH} bands, not {bands}.")
        channels = width if channels is None else channels
        self.first = nn.Conv2d(1, channels, 3, stride=2)
        self.second = nn.Conv2d(channels, channels, 3, stride=2)
        self.projection = nn.Linear(channels * _left(bands), width)

    @staticmethod
    def count_frames(frames_B: Tensor) -> Tensor:
        """How many frames are left: ⌊(⌊(T − 1)/2⌋ − 1)/2⌋, none of fewer than 7."""
        return (((frames_B - 1) // 2 - 1) // 2).clamp(min=0)

    def forward(self, mel_BTM: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, T, M] to vectors [B, S, D] and lengths_B; S is at least 1."""
        missing = max(0, REACH - mel_BTM.shape[1])
        x_B1TM = F.pad(mel_BTM, (0, 0, 0, missing)).unsqueeze(1)
        x_BCTG = F.relu(self.first(x_B1TM))
        x_BCSG = F.relu(self.second(x_BCTG))
        x_BSE = x_BCSG.transpose(1, 2).flatten(2)
        x_BSD = linear(x_BSE, self.projection.weight, self.projection.bias)
        return x_BSD, self.count_frames(frames_B)


def _left(length: int) -> int:
    return ((length - 1) // 2 - 1) // 2
