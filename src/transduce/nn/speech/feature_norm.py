"""Feature normalisation: mean zero and variance one, per utterance (CMVN) or by global statistics.

An utterance's own statistics remove loudness and microphone, but need the whole utterance; those of
a corpus can be applied frame by frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

MIN_DEVIATION = 1e-5  # of a band that never changes: silence stays zero


def normalise_utterances(mel_BTM: Tensor, frames_B: Tensor, variance: bool = True) -> Tensor:
    """Per-utterance normalisation: mean zero and, with `variance`, variance one of each band.

    Padding beyond frames_B is left out of the statistics and becomes zero. Of a single frame only
    the mean is subtracted.
    """
    real_BT1 = _real(mel_BTM, frames_B)
    count_B11 = frames_B.clamp(min=1).view(-1, 1, 1)
    mean_B1M = mel_BTM.masked_fill(~real_BT1, 0.0).sum(dim=1, keepdim=True) / count_B11
    centred_BTM = (mel_BTM - mean_B1M).masked_fill(~real_BT1, 0.0)
    if not variance:
        return centred_BTM
    variance_B1M = centred_BTM.square().sum(dim=1, keepdim=True) / count_B11
    return centred_BTM / variance_B1M.sqrt().clamp(min=MIN_DEVIATION)


@dataclass
class Statistics:
    """Mean and variance of each band over batches of features, in float64.

    Chan, Golub and LeVeque 1983: partial results are merged by their means and squared deviations,
    so that large means cost no precision, and several processes can count separately and `merge`.
    """

    count: Tensor
    mean_M: Tensor
    squares_M: Tensor
    """Σ (x − mean)²."""

    @classmethod
    def empty(cls, bands: int, device: torch.device | str | None = None) -> Statistics:
        zeros_M = torch.zeros(bands, dtype=torch.float64, device=device)
        return cls(torch.zeros((), dtype=torch.float64, device=device), zeros_M, zeros_M.clone())

    def update(self, mel_BTM: Tensor, frames_B: Tensor) -> None:
        """Add the real frames of a batch; without synchronising with the device."""
        real_BT1 = _real(mel_BTM, frames_B)
        exact_BTM = mel_BTM.double().masked_fill(~real_BT1, 0.0)
        count = frames_B.sum().double()
        mean_M = exact_BTM.sum(dim=(0, 1)) / count.clamp(min=1)
        apart_BTM = (exact_BTM - mean_M).masked_fill(~real_BT1, 0.0)
        self.merge(Statistics(count, mean_M, apart_BTM.square().sum(dim=(0, 1))))

    def merge(self, other: Statistics) -> None:
        """Add the statistics of another process or part."""
        total = self.count + other.count
        apart_M = other.mean_M - self.mean_M
        share = other.count / total.clamp(min=1)
        self.squares_M = self.squares_M + other.squares_M + apart_M.square() * self.count * share
        self.mean_M = self.mean_M + apart_M * share
        self.count = total

    @property
    def deviation_M(self) -> Tensor:
        return (self.squares_M / self.count.clamp(min=1)).sqrt()


class GlobalNorm(nn.Module):
    """Features normalised by the statistics of a corpus, which are saved with the weights but not
    trained.
    """

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.mean_M = nn.Parameter(torch.zeros(bands), requires_grad=False)
        self.deviation_M = nn.Parameter(torch.ones(bands), requires_grad=False)

    @torch.no_grad()
    def set(self, statistics: Statistics) -> None:
        self.mean_M.copy_(statistics.mean_M)
        self.deviation_M.copy_(statistics.deviation_M.clamp(min=MIN_DEVIATION))

    def forward(self, mel_BTM: Tensor, frames_B: Tensor) -> Tensor:
        """Features normalised, zero beyond frames_B."""
        normal_BTM = (mel_BTM - self.mean_M) / self.deviation_M
        return normal_BTM.masked_fill(~_real(mel_BTM, frames_B), 0.0)


def _real(mel_BTM: Tensor, frames_B: Tensor) -> Tensor:
    frame_T = torch.arange(mel_BTM.shape[1], device=mel_BTM.device)
    return (frame_T < frames_B[:, None])[..., None]
