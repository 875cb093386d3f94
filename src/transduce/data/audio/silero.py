"""Silero's voice activity detector, with the weights that the package silero-vad has (MIT).

Its convolutions read 32 ms at a time, after the last 4 ms before them; an LSTM goes over these
frames. The package itself is not imported, and nothing of it but the weights is used.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from transduce.data.audio.recording import Samples
from transduce.errors import ModelError

WEIGHTS = "data/silero_vad_16k.safetensors"  # in the package, since its version 6
RATE = 16_000
FRAME = 512  # samples
CONTEXT = 64  # samples before a frame
PADDING = 64  # samples after it, mirrored
AT_ONCE = 4096  # frames: about two minutes


class SileroNetwork(nn.Module):
    """The probability of speech in each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm = nn.LSTM(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(
        self, frames_SW: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Probabilities [S] of frames with what is before them, and the state after them."""
        x = self.stft_conv(F.pad(frames_SW, (0, PADDING), mode="reflect")[:, None])
        real, imaginary = x.chunk(2, dim=1)
        x = (real.square() + imaginary.square()).sqrt()
        for convolution in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = convolution(x).relu()
        features_SD, state = self.lstm(x.squeeze(-1), state)
        return self.final_conv(features_SD.relu()[:, :, None]).sigmoid().flatten(), state


def is_installed() -> bool:
    return _weights() is not None


def _weights() -> Path | None:
    found = find_spec("silero_vad")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / WEIGHTS
    return path if path.is_file() else None


@cache
def _network(path: Path) -> SileroNetwork:
    network = SileroNetwork()
    renamed = {"lstm_cell": "lstm", "weight_ih": "weight_ih_l0", "weight_hh": "weight_hh_l0"}
    renamed |= {"bias_ih": "bias_ih_l0", "bias_hh": "bias_hh_l0"}
    try:
        weights = load_file(path)
        network.load_state_dict(
            {
                ".".join(renamed.get(part, part) for part in name.split(".")): value
                for name, value in weights.items()
            }
        )
    except (SafetensorError, RuntimeError) as error:
        raise ModelError(
            f"the weights of silero-vad cannot be used ({str(error).splitlines()[0]}): install "
            f"version 6 of the package again, or uninstall it"
        ) from None
    return network.eval()


@torch.inference_mode()
def probabilities(samples: Samples) -> NDArray[np.float32]:
    """The probability of speech in each 32 ms of samples at 16 kHz. The weights must be there."""
    path = _weights()
    assert path is not None
    network, state, found = _network(path), None, []
    count = -(-len(samples) // FRAME)
    padded = np.zeros(CONTEXT + count * FRAME, np.float32)
    padded[CONTEXT : CONTEXT + len(samples)] = samples
    frames = np.lib.stride_tricks.sliding_window_view(padded, CONTEXT + FRAME)[::FRAME]
    for start in range(0, count, AT_ONCE):
        some = torch.from_numpy(frames[start : start + AT_ONCE].copy())
        speech_S, state = network(some, state)
        found.append(speech_S.numpy())
    return np.concatenate(found) if found else np.empty(0, np.float32)
