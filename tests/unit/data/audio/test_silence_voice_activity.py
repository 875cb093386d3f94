"""Voice activity while audio arrives: speech over silence, over noise, from the first moment on."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from transduce.data.audio.silence import VoiceActivity

RATE = 4000


def sound(seconds: float, level: float, seed: int = 1) -> NDArray[np.int16]:
    """Noise at a level in dB relative to full scale."""
    drawn = np.random.default_rng(seed).standard_normal(round(seconds * RATE))
    return np.rint(32768 * 10 ** (level / 20) * drawn).clip(-32768, 32767).astype(np.int16)


def spoken(parts: list[tuple[float, float]], step: int = 4000) -> list[float]:
    """The share of frames with speech in each part, which is (seconds, level)."""
    wave = np.concatenate([sound(*part, seed) for seed, part in enumerate(parts)])
    activity, found = VoiceActivity(RATE), []
    for start in range(0, len(wave), step):
        found += activity.feed(wave[start : start + step], last=start + step >= len(wave))
    assert len(found) == len(wave) // activity.size
    ends = np.cumsum([round(seconds * 100) for seconds, _ in parts])[:-1]
    return [float(np.mean(part)) for part in np.split(np.array(found), ends)]


@pytest.mark.parametrize("noise", [-90.0, -60.0, -45.0])
def test_speech_over_noise(noise: float) -> None:
    before, speech, after = spoken([(2.0, noise), (1.0, -20.0), (2.0, noise)])
    assert before == 0
    assert speech > 0.95
    assert after < 0.05


def test_speech_from_the_first_moment_on() -> None:
    first, pause, second = spoken([(1.0, -20.0), (1.0, -50.0), (1.0, -20.0)])
    assert first == 1
    assert pause < 0.1
    assert second > 0.95


def test_speech_after_digital_silence() -> None:
    silence, speech, after = spoken([(1.0, -200.0), (1.0, -20.0), (1.0, -200.0)])
    assert silence == 0
    assert speech > 0.95
    assert after < 0.1


def test_noise_alone_is_no_speech_however_long() -> None:
    assert spoken([(120.0, -45.0)]) == [0]


def test_how_audio_is_cut_does_not_matter() -> None:
    parts = [(1.0, -50.0), (0.5, -25.0), (1.0, -50.0)]
    assert spoken(parts, 7) == spoken(parts, 10_000)


def test_less_than_half_a_second_is_decided_at_the_end() -> None:
    assert spoken([(0.1, -55.0), (0.2, -20.0)])[1] > 0.9
