"""Voice activity detection: speech in made-up sounds, and what is no speech."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from transduce.data.audio import silero
from transduce.data.audio.speech_activity import RATE, Span, speech_spans, widened
from transduce.errors import ModelError

Samples = NDArray[np.float32]


@pytest.fixture(autouse=True)
def without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(silero, "find_spec", lambda name: None)


def seconds(length: float) -> NDArray[np.float64]:
    return np.arange(round(length * RATE)) / RATE


def hiss(length: float, seed: int = 1) -> Samples:
    noise = np.random.default_rng(seed).standard_normal(len(seconds(length)))
    return (0.05 * noise).astype(np.float32)


def hum(length: float) -> Samples:
    t = seconds(length)
    return (0.05 * sum(np.sin(2 * np.pi * 50 * n * t) / n for n in (1, 2, 3, 5))).astype(np.float32)


def chords(length: float) -> Samples:
    """Another one each half second, of three plucked strings."""
    t, found = seconds(length), np.zeros(len(seconds(length)))
    for number, begin in enumerate(np.arange(0, length, 0.5)):
        after = np.maximum(t - begin, 0)
        for pitch in (220.0, 277.2 + 20 * (number % 3), 330.0 + 40 * (number % 2)):
            tone = sum(np.sin(2 * np.pi * pitch * n * after) / n for n in (1, 2, 3))
            found += (after > 0) * np.exp(-3 * after) * tone
    return (0.05 * found / np.sqrt(np.mean(found**2))).astype(np.float32)


def speech(length: float, seed: int = 3) -> Samples:
    """A buzz whose pitch glides, through two resonances that move from syllable to syllable, of
    five a second; between syllables it is quieter."""
    draw, t = np.random.default_rng(seed), seconds(length)
    pitch = 120 + 20 * np.sin(2 * np.pi * 0.9 * t) + 6 * np.sin(2 * np.pi * 3.1 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    syllables = np.arange(0, length + 0.4, 0.2)
    found = np.zeros(len(t))
    centres = [
        np.interp(t, syllables, draw.uniform(low, high, len(syllables)))
        for low, high in ((300, 800), (900, 2400))
    ]
    for partial in range(1, 28):
        at = partial * pitch
        found += sum(np.exp(-(((at - one) / 120) ** 2)) for one in centres) * np.sin(
            partial * phase
        )
    loud = 0.15 + np.abs(np.sin(np.pi * t / 0.2)) ** 1.5
    found *= loud
    return (0.1 * found / np.sqrt(np.mean(found**2))).astype(np.float32)


VOWELS = {"a": (800, 1200, 2500), "i": (300, 2300, 3000), "u": (320, 800, 2300)}


def song(length: float, note: float) -> Samples:
    """Vowels sung on the notes of a scale, so many seconds each, with a consonant before each."""
    draw, parts, t = np.random.default_rng(4), [], seconds(note)
    for number in range(int(length / note)):
        pitch = 220 * 2 ** (number % 8 / 6)
        formants = VOWELS["aiu"[number % 3]]
        harmonics = pitch * np.arange(1, int(4000 / pitch))
        heights = sum(1 / (1 + ((harmonics - one) / 100) ** 2) for one in formants)
        sung = (heights[:, None] * np.sin(2 * np.pi * harmonics[:, None] * t)).sum(axis=0)
        sung *= np.minimum(1, np.minimum(t, note - t) / 0.03) / np.abs(sung).max()
        parts += [0.02 * np.diff(draw.standard_normal(round(0.07 * RATE))), 0.3 * sung]
    return np.concatenate(parts).astype(np.float32)


@pytest.mark.parametrize(("note", "least", "most"), [(0.3, 0.9, 1.0), (1.0, 0.0, 0.1)])
def test_short_sung_notes_pass_for_speech_and_held_ones_for_music(
    note: float, least: float, most: float
) -> None:
    """As docs/guides/whisper.md says."""
    sound = song(6.0, note)
    found = sum(span.end - span.start for span in speech_spans(sound))
    assert least <= found / (len(sound) / RATE) <= most


@pytest.mark.parametrize("sound", [hiss, hum, chords, lambda length: 0 * hiss(length)])
def test_no_speech_is_found_where_there_is_none(sound: object) -> None:
    assert callable(sound)
    assert speech_spans(sound(6.0)) == []
    assert speech_spans(sound(0.05)) == []


@pytest.mark.parametrize("sound", [hiss, hum, chords, lambda length: 0 * hiss(length)])
def test_speech_between_other_sounds(sound: object) -> None:
    """Within 0.2 s of the truth, whatever is beside it."""
    assert callable(sound)
    samples = np.concatenate([sound(3.0), speech(2.0), sound(2.5), speech(1.5, seed=5), sound(2.0)])
    found = speech_spans(samples)
    assert len(found) == 2, found
    for span, (start, end) in zip(found, [(3.0, 5.0), (7.5, 9.0)], strict=True):
        assert span.start == pytest.approx(start, abs=0.2)
        assert span.end == pytest.approx(end, abs=0.2)


def test_speech_over_noise_and_at_other_rates() -> None:
    samples = 0.15 * hiss(7.0)
    samples[2 * RATE : 4 * RATE] += speech(2.0)
    (found,) = speech_spans(samples)
    assert found == pytest.approx((2.0, 4.0), abs=0.25)
    (found,) = speech_spans(samples[::2], RATE // 2)
    assert found == pytest.approx((2.0, 4.0), abs=0.25)


def test_a_minute_is_no_border() -> None:
    """Long recordings are read a minute at a time."""
    samples = np.zeros(64 * RATE, np.float32)
    samples[round(58.5 * RATE) : round(61.5 * RATE)] = speech(3.0)
    (found,) = speech_spans(samples)
    assert found == pytest.approx((58.5, 61.5), abs=0.2)


def test_widened() -> None:
    spans = [Span(0.1, 1.0), Span(2.5, 3.0), Span(9.0, 9.9)]
    assert widened(spans, 0.3, 1.0, 10.0) == [Span(0.0, 3.3), Span(8.7, 10.0)]


# ----------------------------------------------------------------------- Silero's network


def package(folder: Path, weights: dict[str, torch.Tensor]) -> SimpleNamespace:
    """As if it was installed there, with these weights."""
    (folder / "data").mkdir()
    save_file(weights, folder / silero.WEIGHTS)
    return SimpleNamespace(origin=str(folder / "__init__.py"))


def random_weights() -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    found = silero.SileroNetwork().state_dict()
    names = {"lstm.": "lstm_cell.", "_l0": ""}
    for ours, theirs in names.items():
        found = {name.replace(ours, theirs): value for name, value in found.items()}
    return {name: (3 * value).contiguous() for name, value in found.items()}


def test_frames_are_read_as_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compared with a cell that is given one frame and its state at a time."""
    weights = random_weights()
    spec = package(tmp_path, weights)
    monkeypatch.setattr(silero, "find_spec", lambda name: spec)
    monkeypatch.setattr(silero, "AT_ONCE", 4)
    samples = np.concatenate([hiss(0.2), speech(0.3)])
    cell = nn.LSTMCell(128, 128)
    cell.load_state_dict(
        {name.partition(".")[2]: one for name, one in weights.items() if "lstm" in name}
    )
    state, context, wanted = None, torch.zeros(64), []
    for start in range(0, len(samples), 512):
        frame = torch.zeros(512)
        frame[: len(samples) - start] = torch.from_numpy(samples[start : start + 512])
        x = F.pad(torch.cat([context, frame])[None, None], (0, 64), mode="reflect")
        x = F.conv1d(x, weights["stft_conv.weight"], stride=128)
        x = (x[:, :129] ** 2 + x[:, 129:] ** 2).sqrt()
        for number, stride in ((1, 1), (2, 2), (3, 2), (4, 1)):
            own = weights[f"conv{number}.weight"], weights[f"conv{number}.bias"]
            x = F.conv1d(x, *own, stride=stride, padding=1).relu()
        state = cell(x[:, :, 0], state)
        last = F.conv1d(state[0].relu()[:, :, None], *(
            weights[f"final_conv.{name}"] for name in ("weight", "bias")
        ))  # fmt: skip
        wanted.append(float(last.sigmoid().squeeze().detach()))
        context = frame[-64:]
    found = silero.probabilities(samples)
    assert found == pytest.approx(wanted, abs=1e-5)
    assert max(wanted) - min(wanted) > 0.01
    speech_spans(samples)  # uses it


def test_speech_begins_where_it_is_likely_and_ends_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    likely = [0.1, 0.4, 0.4, 0.1, *([0.1] * 20), 0.4, 0.9, 0.4, 0.4, 0.4, 0.2, *([0.1] * 20)]
    monkeypatch.setattr(silero, "is_installed", lambda: True)
    monkeypatch.setattr(silero, "probabilities", lambda samples: np.array(likely, np.float32))
    (found,) = speech_spans(np.zeros(len(likely) * 512, np.float32))
    assert found == pytest.approx((24 * 0.032, 29 * 0.032))


def test_weights_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = package(tmp_path, {"conv1.weight": torch.zeros(2)})
    monkeypatch.setattr(silero, "find_spec", lambda name: spec)
    with pytest.raises(ModelError, match="install version 6 of the package again"):
        silero.probabilities(hiss(0.1))


def test_what_may_be_speech_counts_where_it_is_likely_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of Silero's probabilities: speech begins where it is likely, and goes on while it may be."""
    probability = np.zeros(100, np.float32)
    probability[10:30] = probability[60:80] = 0.4
    probability[20] = 0.6
    monkeypatch.setattr(silero, "is_installed", lambda: True)
    monkeypatch.setattr(silero, "probabilities", lambda _: probability)
    (span,) = speech_spans(np.zeros(100 * silero.FRAME, np.float32))
    assert span == pytest.approx((10 * silero.FRAME / RATE, 30 * silero.FRAME / RATE))
