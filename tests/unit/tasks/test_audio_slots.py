"""Models of audio with the search of a GPU, here on a CPU: outputs as without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tiny_sounds
import tiny_whisper
from transduce.decoding.cuda.pool import AudioTask
from transduce.tasks import speech

RATE = tiny_whisper.RATE


@pytest.fixture
def slots(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As if there were a GPU; the number of jobs of each search."""
    found: list[int] = []
    run = AudioTask.run

    def counted(self: AudioTask, jobs: Any, settings: Any = None) -> Any:
        found.append(len(jobs))
        return run(self, jobs, settings)

    monkeypatch.setattr(AudioTask, "run", counted)
    monkeypatch.setattr(speech, "has_cuda_search", lambda network: True)
    return found


@pytest.mark.parametrize("beam", [1, 3])
def test_whisper(slots: list[int], beam: int) -> None:
    model = tiny_whisper.our_model().freeze()
    long = np.concatenate(tiny_whisper.noises(3, seed=11))
    waves = [*tiny_whisper.noises(2), long]
    found = model.run(waves, rate=RATE, beam=beam, times=True, fallback=False)
    assert slots
    assert sum(slots) > len(waves)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speech, "has_cuda_search", lambda network: False)
        plain = model.run(waves, rate=RATE, beam=beam, times=True, fallback=False)
    for one, other in zip(found, plain, strict=True):
        assert (one.text, one.ids, one.language) == (other.text, other.ids, other.language)
        assert one.log_probability == pytest.approx(other.log_probability, abs=1e-3)
        assert [w.text for w in one.words] == [w.text for w in other.words]


@pytest.mark.parametrize("beam", [1, 3])
def test_other_models_of_audio(slots: list[int], beam: int) -> None:
    model = tiny_sounds.audio_model()
    rate = model.recordings.settings.sample_rate
    waves = [tiny_sounds.noise(seconds, seed) for seed, seconds in enumerate((0.5, 1.1, 0.8))]
    asked = {"rate": rate, "beam": beam, "ctc_weight": 0.0}
    found = model.run(waves, **asked)
    assert slots == [3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speech, "has_cuda_search", lambda network: False)
        plain = model.run(waves, **asked)
    assert [one.ids for one in found] == [one.ids for one in plain]
    model.run(waves, **{**asked, "ctc_weight": 0.3})  # CTC sees each step
    assert slots == [3]
