"""Log-mel spectrogram (filterbank features): the energy of each mel band in each frame.

Numerically the same as Kaldi's (feature-window.cc, mel-computations.cc), so that features made
elsewhere and here can be mixed. Batched, on the device of the samples; a row's features do not
depend on the rest of the batch.

    W samples of a waveform   A samples of one frame   C frequencies of its spectrum
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

CHUNK = 2**16  # frames whose spectra are in memory at a time, whatever the length


class LogMel(nn.Module):
    """Waveforms to log-mel features, equal to Kaldi's, without gradients.

    Each frame: mean removed, pre-emphasis x_t − 0.97 x_{t−1}, Povey window (a Hann window to the
    power 0.85), power spectrum, triangular mel filters, logarithm. No dither. Kaldi's own values
    are for samples of ±32768; for samples of ±1 they are lower by 2 ln 32768 in every band, which
    any normalization removes.

        features_BTM, frames_B = LogMel(16_000, bands=80)(samples_BW, lengths_B)

    Args:
        rate: samples per second.
        bands: number of mel bands.
        frame_ms: length of a frame in milliseconds.
        hop_ms: time from one frame to the next in milliseconds.
        low: lower edge of the first band in Hz.
        high: upper edge of the last band in Hz; 0 or less counts down from half of the rate.
        snip_edges: only frames that lie wholly inside the recording; if False, a frame is centred
            in every hop, with samples mirrored beyond the ends.
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
        self.low = low
        self.high = high if high > 0 else rate / 2 + high
        self.snip_edges = snip_edges
        self.padded = 1 << (self.frame - 1).bit_length()
        device = torch.empty(0).device
        with torch.device("cpu"):  # on the meta device torch would load its compiler to compute
            window_A = povey_window(self.frame)
            filters_CM = mel_filters(rate, self.padded, bands, low, high)
        self.register_buffer("window_A", window_A.to(device), persistent=False)
        self.register_buffer("filters_CM", filters_CM.to(device), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Tables stay in float32 where a network is converted to half precision: the Fourier
        transform has no other on a CPU, and filters would lose their edges."""
        exact = (self.window_A, self.filters_CM)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, table in zip(("window_A", "filters_CM"), exact, strict=True):
            moved: Tensor = getattr(self, name)
            if moved.dtype.itemsize < table.dtype.itemsize:
                setattr(self, name, table.to(moved.device))
        return self

    def count_frames(self, lengths_B: Tensor) -> Tensor:
        """The number of frames of waveforms of these lengths, in samples."""
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
        # Mirror padding: sample −1 is sample 0, sample W is W − 1, and so on, repeatedly if need
        # be.
        length_B1 = lengths_B[:, None].clamp(min=1)
        turned_BW = place_W % (2 * length_B1)
        mirrored_BW = torch.where(turned_BW < length_B1, turned_BW, 2 * length_B1 - 1 - turned_BW)
        return samples_BW.gather(1, mirrored_BW).unfold(1, self.frame, self.hop)

    def _features(self, frames_BTA: Tensor) -> Tensor:
        x_BTA = frames_BTA - frames_BTA.mean(dim=-1, keepdim=True)
        before_BTA = torch.cat((x_BTA[..., :1], x_BTA[..., :-1]), dim=-1)
        x_BTA = (x_BTA - 0.97 * before_BTA) * self.window_A
        if not x_BTA.numel():  # some FFT libraries fail on empty input
            return x_BTA.new_empty(*x_BTA.shape[:-1], self.filters_CM.shape[1])
        spectrum_BTC = torch.fft.rfft(x_BTA, n=self.padded)
        power_BTC = spectrum_BTC.real.square() + spectrum_BTC.imag.square()
        energy_BTM: Tensor = power_BTC @ self.filters_CM
        return energy_BTM.clamp(min=torch.finfo(torch.float32).eps).log()


def povey_window(length: int) -> Tensor:
    """Povey window (½ − ½ cos(2πn / (A − 1)))^0.85 [A]: like a Hann window, but it never reaches
    zero inside.
    """
    angle_A = 2 * math.pi * torch.arange(length, dtype=torch.float64) / (length - 1)
    return (0.5 - 0.5 * angle_A.cos()).pow(0.85).float()


def mel_filters(rate: int, padded: int, bands: int, low: float, high: float) -> Tensor:
    """Triangular mel filters [C, M], C = padded/2 + 1, evenly spaced in mel from `low` to `high`
    Hz.

    high ≤ 0 counts down from the Nyquist frequency. The triangles are straight in mel, not in Hz,
    and the highest frequency belongs to none, both as in Kaldi.
    """
    nyquist = rate / 2
    high = high if high > 0 else nyquist + high
    if not 0 <= low < high <= nyquist:
        raise ValueError(
            f"Mel bands from {low} to {high} Hz are not possible: at {rate} samples a second "
            f"choose limits that rise within 0 and {nyquist} Hz."
        )
    hertz_C1 = torch.arange(padded // 2, dtype=torch.float64)[:, None] * rate / padded
    # The device is given, as torch forgets that of a `with torch.device(...)` for linspace where
    # transformers has loaded a model before.
    edges_M2 = torch.linspace(
        mel(low), mel(high), bands + 2, dtype=torch.float64, device=hertz_C1.device
    )
    left_M, centre_M, right_M = edges_M2[:-2], edges_M2[1:-1], edges_M2[2:]
    mel_C1 = 1127.0 * torch.log1p(hertz_C1 / 700.0)
    rising_CM = (mel_C1 - left_M) / (centre_M - left_M)
    falling_CM = (right_M - mel_C1) / (right_M - centre_M)
    filters_CM = torch.minimum(rising_CM, falling_CM).clamp(min=0.0)
    if not (filters_CM > 0).any(dim=0).all():
        raise ValueError(
            f"{bands} mel bands are too many for frames of {padded} samples: some lie between two "
            f"frequencies and would always be empty."
        )
    return torch.cat((filters_CM, filters_CM.new_zeros(1, bands))).float()


def mel(hertz: float) -> float:
    """A frequency on the mel scale."""
    return 1127.0 * math.log1p(hertz / 700.0)
