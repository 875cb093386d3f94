"""Background noise: data augmentation that adds noise to speech, and noise alone around it.

Live speech has noise before its first word and after its last one; recordings of a corpus are often
cut at the words, and a model that has only seen those takes the noise after them for speech. The
noise is coloured: its power falls with frequency as f^-a, a drawn from white (0) to brown (2).

    W samples of a waveform   F frequencies
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from transduce.nn.masks import readable

BROWN = 2.0  # the greatest exponent
SILENT = 0.1  # share of the changed recordings that get digital silence, as of a muted microphone


class BackgroundNoise(nn.Module):
    """In training, noise for a `share` of the waveforms, different for each.

    Up to `before` seconds of it are alone before the speech and up to `after` seconds after it, and
    it is also added to the speech. The speech is `snr` decibels louder: from the lowest to the
    highest signal-to-noise ratio. One in ten gets zeros around it instead, and no noise.
    """

    def __init__(
        self,
        rate: int,
        share: float = 0.5,
        before: float = 1.0,
        after: float = 2.0,
        snr: tuple[float, float] = (30.0, 60.0),
    ) -> None:
        """rate: samples a second."""
        super().__init__()
        if not 0 <= share <= 1 or min(before, after) < 0 or snr[0] > snr[1]:
            raise ValueError(
                f"share must be from 0 to 1, before and after at least 0, and snr from low to "
                f"high, not {share}, {before}, {after} and {list(snr)}."
            )
        self.share, self.snr = share, snr
        self.before, self.after = round(before * rate), round(after * rate)
        self.rate = rate

    def forward(
        self, samples_BW: Tensor, lengths_B: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Waveforms [B, W] with noise, and their lengths, which may stay on the CPU.

        `generator`, where the lengths are, draws how much noise there is; the noise itself is drawn
        on the device of the samples. Where lengths are not to be read, waveforms have room for
        all the noise there may be.
        """
        if not self.training:
            return samples_BW, lengths_B
        device = samples_BW.device
        draws_6B = torch.rand(
            6, len(samples_BW), generator=generator, dtype=torch.float64, device=lengths_B.device
        )
        changed_B = draws_6B[0] < self.share
        before_B = (draws_6B[1] * (self.before + 1)).long() * changed_B
        after_B = (draws_6B[2] * (self.after + 1)).long() * changed_B
        ratio_B = self.snr[0] + draws_6B[3] * (self.snr[1] - self.snr[0])
        gain_B = 10 ** (-ratio_B / 20) * (changed_B & (draws_6B[4] >= SILENT))
        longer_B = before_B + lengths_B + after_B
        if readable(lengths_B):
            size = int(longer_B.max())
        else:
            size = samples_BW.shape[1] + self.before + self.after
        moved_BW = _moved(samples_BW, lengths_B.to(device), before_B.to(device), size)
        power_B = moved_BW.square().sum(dim=1) / lengths_B.to(device).clamp(min=1)
        scale_B = gain_B.to(moved_BW) * power_B.sqrt()
        noise_BW = coloured_noise(BROWN * draws_6B[5].to(moved_BW), moved_BW.shape[1], self.rate)
        place_W = torch.arange(moved_BW.shape[1], device=device)
        there_BW = place_W < longer_B.to(device)[:, None]
        return moved_BW + noise_BW * scale_B[:, None] * there_BW, longer_B


def _moved(samples_BW: Tensor, lengths_B: Tensor, by_B: Tensor, size: int) -> Tensor:
    """Each waveform later by so many samples, with zeros before and after it: [B, size]."""
    from_BW = torch.arange(size, device=samples_BW.device) - by_B[:, None]
    there_BW = (from_BW >= 0) & (from_BW < lengths_B[:, None])
    found_BW = samples_BW.gather(1, from_BW.clamp(0, max(samples_BW.shape[1] - 1, 0)))
    return found_BW.masked_fill(~there_BW, 0.0)


def coloured_noise(exponent_B: Tensor, samples: int, rate: int) -> Tensor:
    """Noise [B, samples] of power one that falls as f^-exponent, but not below 50 Hz."""
    size = 1 << max(1, math.ceil(math.log2(max(samples, 2))))  # few sizes, each a power of two
    frequency_F = torch.fft.rfftfreq(size, 1 / rate, device=exponent_B.device).clamp(min=50.0)
    weight_BF = frequency_F.to(exponent_B)[None] ** (-exponent_B[:, None] / 2)
    weight_BF = weight_BF / weight_BF.square().mean(dim=1, keepdim=True).sqrt()
    white_BW = torch.randn(len(exponent_B), size, device=exponent_B.device, dtype=exponent_B.dtype)
    with torch.autocast(exponent_B.device.type, enabled=False):
        noise_BW: Tensor = torch.fft.irfft(torch.fft.rfft(white_BW) * weight_BF, n=size)
    return noise_BW[:, :samples]
