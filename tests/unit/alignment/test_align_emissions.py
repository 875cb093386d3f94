"""What CTC hears in long recordings: every state once, whatever the windows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_sounds import audio_model, noise
from transduce.alignment import align as emissions
from transduce.alignment.align import _windows, ctc_emissions
from transduce.tasks.audio_input import AudioInput
from transduce.tasks.model import inference

RATE = 4000


def test_a_short_recording_is_heard_as_always(tmp_path: Path) -> None:
    model, wave = audio_model(), noise(0.9)
    soundfile.write(tmp_path / "short.wav", wave, RATE)
    with inference(model):
        memory = model.network.encode(torch.from_numpy(wave)[None], torch.tensor([len(wave)]))
        expected_SV = model.network.ctc_log_probs(memory)[0]
    assert torch.allclose(ctc_emissions(model, tmp_path / "short.wav"), expected_SV, atol=1e-5)


@pytest.mark.parametrize("seconds", [2.99, 3.0, 3.01, 7.77, 20.3])
def test_a_long_recording_has_as_many_states_as_it_would_in_one_piece(
    tmp_path: Path, seconds: float
) -> None:
    model, wave = audio_model(), noise(seconds)
    soundfile.write(tmp_path / "long.wav", wave, RATE)
    heard_SV = ctc_emissions(model, tmp_path / "long.wav")
    assert len(heard_SV) == model.network.states_of(len(wave))


def test_windows_hear_what_the_whole_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With global normalisation and convolutions alone, a second of context is all there is."""
    model, wave = audio_model("audio.normalize=global", encoder="recurrent"), noise(6.0)
    soundfile.write(tmp_path / "long.wav", wave, RATE)
    cut_SV = ctc_emissions(model, tmp_path / "long.wav")
    monkeypatch.setattr(emissions, "CORE", 100.0)
    monkeypatch.setattr(AudioInput, "longest", 200.0)
    whole_SV = ctc_emissions(model, tmp_path / "long.wav")
    assert torch.allclose(cut_SV, whole_SV, atol=0.02)
    assert not torch.allclose(cut_SV[1:], whole_SV[:-1], atol=0.02)


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 20), st.integers(0, 20))
def test_every_sample_is_kept_once(sizes: list[int], core: int, context: int) -> None:
    context = min(context, core)
    whole = np.arange(sum(sizes), dtype=np.float32) / 32768
    blocks = np.split(whole, np.cumsum(sizes)[:-1]) if sizes else []
    kept = [wave[start:end] for wave, start, end in _windows(blocks, core, context)]
    assert np.concatenate(kept).tolist() == list(range(len(whole)))
