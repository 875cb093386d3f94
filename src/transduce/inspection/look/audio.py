"""Audio for a page: its spectrogram as a small picture, and the samples to play."""

from __future__ import annotations

import base64
import io
import wave
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.audio.corpus import FULL_SCALE
from transduce.errors import DataError
from transduce.inspection.look.arrays import packed
from transduce.tasks import AudioInputModel
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.model import inference

MAX_PLAYED = 60.0  # seconds of audio that a page carries to play
DARKEST, BRIGHTEST = 0.05, 0.998  # quantiles of log-mel energy


def check_audio(model: AudioInputModel, source: Any, tags: Sequence[str]) -> None:
    """Raise DataError for audio that cannot be used, or that is too long for one segment."""
    (recording,) = model.recordings.split([source], None, tags)
    if recording.error or (isinstance(recording.source, AudioSegment) and recording.source.silent):
        raise DataError(
            recording.error or f"{source} contains only silence; give another recording"
        )
    if len(recording.segments) > 1 or not recording.whole:
        longest = model.recordings.longest
        raise DataError(
            f"{source} is longer than the {longest:g} s that this model reads at once; give a part "
            f"of it, such as {source}#t=0,{longest:g}"
        )


def audio_of(model: AudioInputModel, source: Any, tags: Sequence[str]) -> dict[str, Any]:
    """The spectrogram [mel bands, frames] of a recording, and up to a minute of it as WAV."""
    (recording,) = model.recordings.split([source], None, tags)
    ((samples, remark, _),) = model.recordings.waves_of([recording.source])
    if samples is None:
        raise DataError(remark)
    rate = model.recordings.settings.sample_rate
    seconds = len(samples) / rate
    mel_FM = _log_mel(model, samples)
    low, high = (float(np.quantile(mel_FM, q)) for q in (DARKEST, BRIGHTEST))
    shades_MF = ((mel_FM.T - low) / max(high - low, 1e-6)).clip(0.0, 1.0)
    return {
        "start": recording.start,
        "seconds": round(seconds, 4),
        "rate": rate,
        "spectrogram": packed(shades_MF, 255),
        "wav": _wav(samples, rate) if seconds <= MAX_PLAYED else "",
    }


def _log_mel(model: AudioInputModel, samples: NDArray[np.int16]) -> NDArray[np.float32]:
    samples_BW = torch.from_numpy(samples[None]).to(model.device).float() / FULL_SCALE
    with inference(model):
        mel_BFM, _ = model.network.front.mel(
            samples_BW, torch.tensor([len(samples)], device=model.device)
        )
    found: NDArray[np.float32] = mel_BFM[0].float().cpu().numpy()
    return found


def _wav(samples: NDArray[np.int16], rate: int) -> str:
    """A WAV file of 16 bits, as base64."""
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes())
    return base64.b64encode(held.getvalue()).decode("ascii")
