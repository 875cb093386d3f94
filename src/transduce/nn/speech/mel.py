"""Log-mel features: how strong each band of frequencies is in each frame of a waveform.

As Kaldi computes them, number for number (feature-window.cc, mel-computations.cc), so that features
made elsewhere and here can be mixed. In batches, where the samples are; a row's features do not
depend on what it is batched with.

    W samples of a waveform    A samples of one frame    C frequencies of its spectrum
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

CHUNK = 2**16  # frames whose spectra exist at a time, whatever the length


class LogMel(nn.Module):
    """Waveforms to log-mel features, without gradients.

    Each frame: its mean removed, pre-emphasis x_t − 0.97 x_{t−1}, Povey's window (a Hann window to
    the power 0.85), the power spectrum, triangles evenly spaced in mel, the logarithm. No dither.

    snip_edges: frames that fit wholly, or, without, a frame centred in every hop, where samples
    beyond the ends are mirrored. Kaldi's own numbers are of samples of ±32768; those of ±1 are
    lower by 2 ln 32768 in every band, which any normalisation takes away.
    """

    window_A: Tensor
    filters_CM: Tensor

    def __init__(
        self,
        rate: int = 16_000,
        bands: int = 80,
        *,
        frame_ms: float = 25.0,
        hop_ms: float = 10.0,
        low: float = 20.0,
        high: float = 0.0,
        snip_edges: bool = True,
    ) -> None:
        super().__init__()
        self.rate = rate
        self.frame = int(rate * 0.001 * frame_ms)
        self.hop = int(rate * 0.001 * hop_ms)
        self.bands = bands
        self.snip_edges = snip_edges
        self.padded = 1 << (self.frame - 1).bit_length()
        self.register_buffer("window_A", povey_window(self.frame), persistent=False)
        filters_CM = mel_filters(rate, self.padded, bands, low, high)
        self.register_buffer("filters_CM", filters_CM, persistent=False)

    def count_frames(self, lengths_B: Tensor) -> Tensor:
        """How many frames waveforms of so many samples have."""
        if self.snip_edges:
            return ((lengths_B - self.frame) // self.hop + 1).clamp(min=0)
        return (lengths_B + self.hop // 2) // self.hop

    @torch.no_grad()
    def forward(self, samples_BW: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Samples [B, W], the first lengths_B of them real, to features [B, T, M] and frames_B.

        Features beyond a row's frames are zero.
        """
        B, W = samples_BW.shape
        if lengths_B is None:
            lengths_B = torch.full((B,), W, device=samples_BW.device)
        frames_B = self.count_frames(lengths_B)
        longest = self.count_frames(torch.tensor(W))
        with torch.autocast(samples_BW.device.type, enabled=False):
            framed_BTA = self._frames(samples_BW.to(self.window_A.dtype), lengths_B, int(longest))
            size = max(1, CHUNK // max(B, 1))
            chunks = torch.split(framed_BTA, size, dim=1)
            parts = [self._features(chunk_BTA) for chunk_BTA in chunks]
        mel_BTM = torch.cat(parts, dim=1)
        real_BT = torch.arange(mel_BTM.shape[1], device=mel_BTM.device) < frames_B[:, None]
        return mel_BTM.masked_fill(~real_BT[..., None], 0.0), frames_B

    def _frames(self, samples_BW: Tensor, lengths_B: Tensor, frames: int) -> Tensor:
        """A view: overlapping frames [B, T, A]."""
        if not frames:
            return samples_BW.new_empty(len(samples_BW), 0, self.frame)
        if self.snip_edges:
            return samples_BW.unfold(1, self.frame, self.hop)
        reach = (frames - 1) * self.hop + self.frame
        first = self.hop // 2 - self.frame // 2
        place_W = torch.arange(first, first + reach, device=samples_BW.device)
        # Sample −1 is sample 0, sample W is W − 1, and so on, back and forth where need be.
        length_B1 = lengths_B[:, None].clamp(min=1)
        turned_BW = place_W % (2 * length_B1)
        mirrored_BW = torch.where(turned_BW < length_B1, turned_BW, 2 * length_B1 - 1 - turned_BW)
        return samples_BW.gather(1, mirrored_BW).unfold(1, self.frame, self.hop)

    def _features(self, frames_BTA: Tensor) -> Tensor:
        x_BTA = frames_BTA - frames_BTA.mean(dim=-1, keepdim=True)
        before_BTA = torch.cat((x_BTA[..., :1], x_BTA[..., :-1]), dim=-1)
        x_BTA = (x_BTA - 0.97 * before_BTA) * self.window_A
        if not x_BTA.numel():  # some libraries know no transform of nothing
            return x_BTA.new_empty(*x_BTA.shape[:-1], self.filters_CM.shape[1])
        spectrum_BTC = torch.fft.rfft(x_BTA, n=self.padded)
        power_BTC = spectrum_BTC.real.square() + spectrum_BTC.imag.square()
        energy_BTM: Tensor = power_BTC @ self.filters_CM
        return energy_BTM.clamp(min=torch.finfo(torch.float32).eps).log()


def povey_window(length: int) -> Tensor:
    """(½ − ½ cos(2πn / (A − 1)))^0.85 [A]: as a Hann window, but it does not touch zero within."""
    angle_A = 2 * math.pi * torch.arange(length, dtype=torch.float64) / (length - 1)
    return (0.5 - 0.5 * angle_A.cos()).pow(0.85).float()


def mel_filters(rate: int, padded: int, bands: int, low: float, high: float) -> Tensor:
    """Triangles [C, M], C = padded/2 + 1, evenly spaced in mel from `low` to `high` Hz.

    high ≤ 0 counts down from half the rate. Triangles are straight in mel, not in Hz, and the
    highest frequency belongs to none, both as in Kaldi.
    """
    nyquist = rate / 2
    high = high if high > 0 else nyquist + high
    if not 0 <= low < high <= nyquist:
        raise ValueError(
            f"Mel bands from {low} to {high} Hz cannot be: at {rate} samples a second they must "
            f"rise within 0 and {nyquist} Hz."
        )
    edges_M2 = torch.linspace(mel(low), mel(high), bands + 2, dtype=torch.float64)
    left_M, centre_M, right_M = edges_M2[:-2], edges_M2[1:-1], edges_M2[2:]
    hertz_C1 = torch.arange(padded // 2, dtype=torch.float64)[:, None] * rate / padded
    mel_C1 = 1127.0 * torch.log1p(hertz_C1 / 700.0)
    rising_CM = (mel_C1 - left_M) / (centre_M - left_M)
    falling_CM = (right_M - mel_C1) / (right_M - centre_M)
    filters_CM = torch.minimum(rising_CM, falling_CM).clamp(min=0.0)
    if not filters_CM.is_meta and not (filters_CM > 0).any(dim=0).all():
        raise ValueError(
            f"{bands} mel bands are too many for frames of {padded} samples: some lie between two "
            f"frequencies and would always be empty."
        )
    return torch.cat((filters_CM, filters_CM.new_zeros(1, bands))).float()


def mel(hertz: float) -> float:
    """A frequency on the mel scale."""
    return 1127.0 * math.log1p(hertz / 700.0)
