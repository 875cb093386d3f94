"""Whisper's log-mel features and the two convolutions after them.

Radford et al. 2022, https://arxiv.org/abs/2212.04356.

    W samples of a waveform   C frequencies of a spectrum
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOW = 400  # samples of a frame
HOP = 160
MIN_ENERGY = 1e-10  # of an energy, before the logarithm
RANGE = 8.0  # powers of ten below the loudest value of a recording


class Tables(NamedTuple):
    window_A: Tensor
    filters_CM: Tensor

    def to(self, device: torch.device) -> Tables:
        return Tables(*(table.to(device, non_blocking=True) for table in self))


class WhisperMel(nn.Module):
    """Waveforms to Whisper's log-mel features, without gradients.

    Frames of 25 ms, one every 10 ms, centred, with a Hann window; power spectrum; triangular
    filters on Slaney's mel scale, each of unit area; log10; all that is more than 8 below the
    recording's maximum is raised to that; (x + 4) / 4.

    pad_to: every recording is padded with silence, or cut, to so many seconds; None: it keeps its
    length, and beyond its end there is silence.
    """

    def __init__(self, bands: int = 80, pad_to: float | None = 30.0, rate: int = 16_000) -> None:
        super().__init__()
        self.rate, self.bands = rate, bands
        self.frame, self.hop = WINDOW, HOP
        self.samples = None if pad_to is None else round(pad_to * rate)
        # No buffers: they stay in float32, whatever the network is converted to.
        # On the CPU also where a network is built on the meta device: the two do not mix.
        with torch.device("cpu"):
            self._tables = Tables(torch.hann_window(WINDOW), slaney_filters(rate, WINDOW, bands))
        self._copies: dict[torch.device, Tables] = {}

    @property
    def window_A(self) -> Tensor:
        return self._tables.window_A

    def _on(self, device: torch.device) -> Tables:
        """The tables on a device, copied once: a CUDA graph cannot copy from the CPU."""
        if device not in self._copies:
            self._copies[device] = self._tables.to(device)
        return self._copies[device]

    def count_frames(self, lengths_B: Tensor) -> Tensor:
        """The number of frames of waveforms of these lengths, in samples."""
        if self.samples is not None:
            return torch.full_like(lengths_B, self.samples // HOP)
        return -(-lengths_B // HOP)

    @torch.no_grad()
    def forward(self, samples_BW: Tensor, lengths_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Samples [B, W], the first lengths_B of them real, to features [B, T, M] and frames_B.

        Features beyond a row's frames are zero.
        """
        B, W = samples_BW.shape
        if lengths_B is None:
            lengths_B = torch.full((B,), W, device=samples_BW.device)
        frames_B = self.count_frames(lengths_B)
        half = WINDOW // 2
        with torch.autocast(samples_BW.device.type, enabled=False):
            tables = self._on(samples_BW.device)
            samples_BW = samples_BW.float()
            real_BW = torch.arange(W, device=samples_BW.device) < lengths_B[:, None]
            samples_BW = samples_BW.masked_fill(~real_BW, 0.0)
            if self.samples is None:
                # At least as many as mirroring at the beginning needs; silence after the end.
                whole = max(HOP * -(-W // HOP), half + 1)
                padded_BW = F.pad(samples_BW, (0, whole + half - W))
                padded_BW = torch.cat((padded_BW[:, 1 : half + 1].flip(1), padded_BW), dim=1)
            else:
                samples_BW = F.pad(samples_BW[:, : self.samples], (0, max(0, self.samples - W)))
                padded_BW = F.pad(samples_BW, (half, half), mode="reflect")
            spectrum_BCT = torch.stft(
                padded_BW, WINDOW, HOP, window=tables.window_A, center=False, return_complex=True
            )
            longest = self.count_frames(torch.tensor(W))
            power_BTC = spectrum_BCT.abs().square().mT[:, : int(longest)]
            log_BTM = (power_BTC @ tables.filters_CM).clamp(min=MIN_ENERGY).log10()
        beyond_BT1 = (torch.arange(log_BTM.shape[1], device=log_BTM.device) >= frames_B[:, None])[
            ..., None
        ]
        loudest_B11 = log_BTM.masked_fill(beyond_BT1, -math.inf).amax(dim=(1, 2), keepdim=True)
        mel_BTM = (torch.maximum(log_BTM, loudest_B11 - RANGE) + 4.0) / 4.0
        return mel_BTM.masked_fill(beyond_BT1, 0.0), frames_B


class WhisperConvolutions(nn.Module):
    """Two convolutions of kernel 3 over time with GELU, the second of stride 2."""

    factor = 2  # frames for each state
    centred = True  # state s lies around frame 2s

    def __init__(self, bands: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 3, padding=1)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1)

    @staticmethod
    def count_frames(frames_B: Tensor) -> Tensor:
        """The number of output frames: every other one."""
        return -(-frames_B // 2)

    def forward(self, mel_BTM: Tensor, frames_B: Tensor) -> tuple[Tensor, Tensor]:
        """Features [B, T, M] to vectors [B, S, D] and lengths_B."""
        T = mel_BTM.shape[1]
        x_BDT = F.gelu(self.first(mel_BTM.mT))
        # What the second sees beyond a row's end is zero, as it is at the end of a batch.
        beyond_BT = torch.arange(T, device=x_BDT.device) >= frames_B[:, None]
        x_BDT = x_BDT.masked_fill(beyond_BT[:, None], 0.0)
        x_BDS = F.gelu(self.second(x_BDT))
        # In order: else every block would add to a stream that lies across its own numbers.
        return x_BDS.mT.contiguous(), self.count_frames(frames_B)


def slaney_filters(rate: int, window: int, bands: int) -> Tensor:
    """Triangular mel filters [C, M] of unit area from 0 Hz to half the rate, on Slaney's scale.

    They are straight in Hz. (Slaney 1998, Auditory Toolbox; librosa's filters.)
    """
    top = hertz_to_slaney(rate / 2)
    edges_M2 = torch.tensor(
        [slaney_to_hertz(top * place / (bands + 1)) for place in range(bands + 2)],
        dtype=torch.float64,
    )
    hertz_C1 = torch.linspace(0, rate / 2, window // 2 + 1, dtype=torch.float64)[:, None]
    left_M, centre_M, right_M = edges_M2[:-2], edges_M2[1:-1], edges_M2[2:]
    rising_CM = (hertz_C1 - left_M) / (centre_M - left_M)
    falling_CM = (right_M - hertz_C1) / (right_M - centre_M)
    filters_CM = torch.minimum(rising_CM, falling_CM).clamp(min=0.0) * 2 / (right_M - left_M)
    if not filters_CM.is_meta and not (filters_CM > 0).any(dim=0).all():
        raise ValueError(
            f"{bands} mel bands are too many for frames of {window} samples: some lie between two "
            f"frequencies and would always be empty."
        )
    return filters_CM.float()


# Slaney's scale is linear up to 1,000 Hz, 200/3 Hz a mel, and logarithmic above.
STEP, BEND = 200 / 3, 1000.0
LOG_STEP = math.log(6.4) / 27


def hertz_to_slaney(hertz: float) -> float:
    if hertz < BEND:
        return hertz / STEP
    return BEND / STEP + math.log(hertz / BEND) / LOG_STEP


def slaney_to_hertz(mel: float) -> float:
    if mel < BEND / STEP:
        return STEP * mel
    return BEND * math.exp(LOG_STEP * (mel - BEND / STEP))
