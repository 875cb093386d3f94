"""Recordings made of noise and tones, cut where they should be."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recordings import corpus
from transduce.data.audio.read import audio_blocks
from transduce.data.audio.silence import cut_at_silences

RATE = 16_000


def noise(seconds: float, loudness: float, seed: int = 0) -> np.ndarray:
    """White noise, its loudness in dB below full scale."""
    draw = np.random.default_rng(seed)
    return (10 ** (loudness / 20) * draw.standard_normal(round(seconds * RATE))).astype(np.float32)


def tone(seconds: float, loudness: float = -20.0) -> np.ndarray:
    """A tone that swells and fades eight times a second, as syllables do."""
    time = np.arange(round(seconds * RATE)) / RATE
    swell = 0.6 + 0.4 * np.sin(2 * np.pi * 8 * time)
    wave = 10 ** (loudness / 20) * np.sqrt(2) * swell * np.sin(2 * np.pi * 300 * time)
    return wave.astype(np.float32)


def recording(
    *parts: tuple[float, bool], floor: float = -50.0, speech: float = -20.0
) -> np.ndarray:
    pieces = [
        tone(s, speech) if loud else np.zeros(round(s * RATE), np.float32) for s, loud in parts
    ]
    joined = np.concatenate(pieces)
    return joined + noise(len(joined) / RATE, floor)


def blocks(samples: np.ndarray, size: int = 7_777) -> Iterator[np.ndarray]:
    return (samples[start : start + size] for start in range(0, len(samples), size))


def near(found: list[tuple[float, float]], *expected: tuple[float, float]) -> None:
    assert len(found) == len(expected), found
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=0.08)


@pytest.mark.parametrize("floor", [-80.0, -60.0, -45.0, -32.0])
@pytest.mark.parametrize("offset", [0.0, 0.2])
def test_tones_are_found_over_any_noise(floor: float, offset: float) -> None:
    samples = recording(
        (1.0, False), (2.0, True), (0.8, False), (1.5, True), (1.0, False), floor=floor
    )
    found = cut_at_silences(blocks(samples + offset), RATE, margin=0.0)
    near(found, (1.0, 3.0), (3.8, 5.3))


@pytest.mark.parametrize("size", [100, 160, 161, 16_000, 10**9])
def test_blocks_of_any_size_give_the_same(size: int) -> None:
    samples = recording((1.0, False), (2.0, True), (0.8, False), (1.5, True), (1.0, False))
    assert cut_at_silences(blocks(samples, size), RATE) == cut_at_silences(blocks(samples), RATE)


def test_noise_that_changes_within_a_recording() -> None:
    """After a minute a fan is switched on: the new floor is above the old threshold."""
    pattern = [(1.0, False), (2.0, True)] * 20
    quiet, loud = recording(*pattern, floor=-60.0), recording(*pattern, floor=-42.0)
    found = cut_at_silences(blocks(np.concatenate((quiet, loud))), RATE, margin=0.0)
    expected = [(3.0 * n + 1, 3.0 * n + 3) for n in range(40)]
    # Around the change both floors are heard; away from it all is as it should be.
    calm = [stretch for stretch in found if not 42 < stretch[0] < 80]
    near(calm, *[stretch for stretch in expected if not 42 < stretch[0] < 80])


def test_short_pauses_do_not_cut_and_clicks_are_no_sound() -> None:
    samples = recording((1.0, False), (1.0, True), (0.2, False), (1.0, True), (1.0, False))
    samples = np.concatenate((samples, recording((0.02, True), (1.0, False))))
    near(cut_at_silences(blocks(samples), RATE, margin=0.0), (1.0, 3.2))
    near(cut_at_silences(blocks(samples), RATE, pause=0.1, margin=0.0), (1.0, 2.0), (2.2, 3.2))


def test_margins_share_the_pause() -> None:
    samples = recording((1.0, False), (1.0, True), (0.4, False), (1.0, True), (1.0, False))
    near(cut_at_silences(blocks(samples), RATE, margin=0.15), (0.85, 2.15), (2.25, 3.55))
    near(cut_at_silences(blocks(samples), RATE, margin=9.0), (0.0, 2.2), (2.2, 4.4))


def test_what_is_too_long_is_cut_where_it_is_quietest() -> None:
    """Pauses of 0.15 s are too short to cut by themselves, but the best places if one must."""
    samples = recording((0.5, False), *[(2.0, True), (0.15, False)] * 20, (0.5, False))
    found = cut_at_silences(blocks(samples), RATE, longest=10.0, margin=0.0)
    assert len(found) >= 5
    assert max(end - start for start, end in found) <= 10.0
    assert min(end - start for start, end in found) >= 2.0
    pauses = [0.5 + 2.15 * n + 2.075 for n in range(20)]
    for _, end in found[:-1]:
        assert min(abs(end - pause) for pause in pauses) < 0.1
    assert all(one[1] == other[0] for one, other in pairwise(found))  # nothing is lost


def test_without_any_pause_it_is_cut_all_the_same() -> None:
    samples = recording((1.0, False), (70.0, True), (1.0, False))
    found = cut_at_silences(blocks(samples), RATE, longest=20.0)
    assert max(end - start for start, end in found) <= 20.0
    assert found[0][0] == pytest.approx(0.85, abs=0.1)
    assert found[-1][1] == pytest.approx(71.15, abs=0.1)
    assert all(one[1] == other[0] for one, other in pairwise(found))


def test_a_minute_of_steady_music_is_no_pause() -> None:
    steady = noise(60.0, -20.0)
    quiet = noise(10.0, -60.0)
    found = cut_at_silences(blocks(np.concatenate((quiet, steady, quiet))), RATE)
    assert sum(end - start for start, end in found) > 55


def test_noise_alone_silence_and_nothing_have_no_sound() -> None:
    assert cut_at_silences(blocks(noise(20.0, -40.0)), RATE) == []
    assert cut_at_silences(blocks(np.zeros(20 * RATE, np.float32)), RATE) == []
    assert cut_at_silences(iter([]), RATE) == []
    assert cut_at_silences(blocks(noise(0.005, -40.0)), RATE) == []


def test_digital_silence_does_not_hide_the_noise() -> None:
    """A recording that was edited: half of it zeros, the rest speech over noise."""
    edited = recording(
        (1.0, False), (2.0, True), (1.0, False), (2.0, True), (1.0, False), floor=-45
    )
    samples = np.concatenate((np.zeros(7 * RATE, np.float32), edited))
    near(cut_at_silences(blocks(samples), RATE, margin=0.0), (8.0, 10.0), (11.0, 13.0))


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.floats(0.05, 3.0), st.booleans()), min_size=1, max_size=12),
    st.floats(1.0, 5.0),
)
def test_stretches_are_in_order_within_the_recording_and_never_too_long(
    parts: list[tuple[float, bool]], longest: float
) -> None:
    samples = recording(*parts)
    found = cut_at_silences(blocks(samples), RATE, longest=longest)
    edges = [edge for stretch in found for edge in stretch]
    assert edges == sorted(edges)
    assert all(0 <= edge <= len(samples) / RATE + 0.01 for edge in edges)
    assert all(0 < end - start <= longest + 0.01 for start, end in found)


def test_hours_need_little_memory() -> None:
    minute = recording(*[(1.0, False), (2.0, True)] * 20)
    tracemalloc.start()
    found = cut_at_silences((block for _ in range(20) for block in blocks(minute)), RATE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 20 * 20
    assert peak < 10 * 2**20  # the audio itself is 77 MB


def test_real_speech_keeps_its_speech(tmp_path: Path) -> None:
    """Utterances with two seconds of their own background between them are told apart."""
    pytest.importorskip("soundfile", reason="needs soundfile to read the recordings")
    files = sorted(corpus("mini_an4").glob("cen8-*.flac"))
    parts, spoken, at = [], [], 0.0
    for file in files:
        samples = np.concatenate(list(audio_blocks(file)))
        between = np.tile(samples[:1_600], 20)
        parts += [between, samples]
        spoken.append((at + 2.0, at + 2.0 + len(samples) / RATE))
        at += 2.0 + len(samples) / RATE
    found = cut_at_silences(blocks(np.concatenate(parts)), RATE, pause=1.0)
    assert len(found) == len(files)
    for (start, end), (first, last) in zip(found, spoken, strict=True):
        assert first - 0.5 < start < end < last + 0.5
        assert end - start > 0.5 * (last - first)


def test_settings_that_cannot_be_are_reported() -> None:
    with pytest.raises(ValueError, match="must be allowed to last a second"):
        cut_at_silences(iter([]), RATE, longest=0.5)
