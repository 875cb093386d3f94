"""Rooms and noise: as loud as asked for, and nothing moves in time."""

from __future__ import annotations

import numpy as np
import pytest

from transduce.synthesis.acoustics import echoed, simulate_recording, with_noise

RATE = 16_000


def click(at: float, seconds: float = 1.0) -> np.ndarray:
    samples = np.zeros(round(seconds * RATE), np.float32)
    samples[round(at * RATE)] = 1.0
    return samples


def test_noise_has_its_distance() -> None:
    tone = np.sin(np.arange(RATE) / 5).astype(np.float32)
    for colour in (0.0, 0.9):
        noise = with_noise(tone, 20.0, colour, np.random.default_rng(1)) - tone
        ratio = 10 * np.log10((tone**2).mean() / (noise**2).mean())
        assert ratio == pytest.approx(20, abs=0.7)


def test_an_echo_follows_and_falls() -> None:
    heard = echoed(click(0.2), RATE, decay=0.2, level=0.5, generator=np.random.default_rng(1))
    start = round(0.2 * RATE)
    assert np.abs(heard[:start]).max() < 1e-6
    assert heard[start] == pytest.approx(1.0, abs=1e-6)
    early = (heard[start + 1 : start + 800] ** 2).mean()
    late = (heard[start + 2400 : start + 3200] ** 2).mean()
    assert late < 1e-3 * early
    assert np.abs(heard[start + 3300 :]).max() < 1e-6


def test_a_recording_tells_where_its_voice_begins() -> None:
    heard, before = simulate_recording(click(0.0), RATE, np.random.default_rng(3))
    assert np.abs(heard).max() <= 0.91
    assert int(np.abs(heard).argmax()) == round(before * RATE)
    again, _ = simulate_recording(click(0.0), RATE, np.random.default_rng(3))
    assert np.array_equal(heard, again)
