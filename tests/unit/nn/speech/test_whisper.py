"""Whisper's features and convolutions: those of `transformers`, whoever the neighbours are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny_whisper
from transduce.nn.speech.whisper import WhisperConvolutions, WhisperMel, slaney_filters

RATE = tiny_whisper.RATE


def samples(*waves: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = [len(wave) for wave in waves]
    padded = np.zeros((len(waves), max(lengths)), np.float32)
    for row, wave in zip(padded, waves, strict=True):
        row[: len(wave)] = wave.astype(np.float32) / 32768
    return torch.from_numpy(padded), torch.tensor(lengths)


@pytest.mark.parametrize("bands", [80, 128])
def test_features_are_those_of_transformers(bands: int) -> None:
    waves = [*tiny_whisper.noises(3), *tiny_whisper.noises(1, seed=9, longest=9.0)]
    waves.append(np.zeros(RATE, np.int16))  # silence
    assert max(map(len, waves)) > tiny_whisper.SECONDS * RATE  # one that is cut
    wanted = tiny_whisper.extractor(bands)(
        [wave.astype(np.float32) / 32768 for wave in waves], sampling_rate=RATE, return_tensors="pt"
    ).input_features
    mel = WhisperMel(bands, pad_to=tiny_whisper.SECONDS)
    found, frames = mel(*samples(*waves))
    assert (found.mT - wanted).abs().max() < 1e-4
    assert frames.tolist() == [200] * len(waves)


def test_filters_are_those_of_transformers() -> None:
    audio_utils = pytest.importorskip("transformers.audio_utils")
    wanted = audio_utils.mel_filter_bank(201, 80, 0.0, 8000.0, RATE, "slaney", "slaney")
    assert np.abs(slaney_filters(RATE, 400, 80).numpy() - wanted).max() < 1e-6


def test_without_padding_features_are_the_first_of_those_with() -> None:
    """A recording that keeps its length: as if silence followed, which is left out."""
    waves = tiny_whisper.noises(3, seed=6)
    short, whole = WhisperMel(80, pad_to=None), WhisperMel(80, pad_to=tiny_whisper.SECONDS)
    found, frames = short(*samples(*waves))
    wanted, _ = whole(*samples(*waves))
    for row, count in enumerate(frames.tolist()):
        assert count == -(-len(waves[row]) // 160)
        assert (found[row, :count] - wanted[row, :count]).abs().max() < 1e-5
        assert found[row, count:].abs().sum() == 0


def test_convolutions_of_a_row_do_not_depend_on_its_neighbours() -> None:
    torch.manual_seed(2)
    convolutions = WhisperConvolutions(12, 8)
    mel = torch.randn(2, 31, 12)
    mel[1, 17:] = 0.0
    together, lengths = convolutions(mel, torch.tensor([31, 17]))
    alone, _ = convolutions(mel[1:, :17], torch.tensor([17]))
    assert lengths.tolist() == [16, 9]
    assert torch.allclose(together[1, :9], alone[0], atol=1e-6)


def test_too_many_bands_are_refused() -> None:
    with pytest.raises(ValueError, match="mel bands are too many"):
        slaney_filters(RATE, 400, 300)
