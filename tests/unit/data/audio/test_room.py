"""Rooms and recorded noise: what they do to a recording, when, and which folders are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from transduce.data.audio.corpus import AudioCorpus, audio_corpus
from transduce.data.audio.room import RoomCorpus, from_direct_sound, in_rooms, reverberated
from transduce.data.audio.room import with_noise as noisy
from transduce.errors import DataError
from transduce.recipe import Audio

RATE = 4000


def noise(size: int, seed: int = 1) -> np.ndarray:
    return (3000 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Noises of 8 kHz, which are resampled, one in a folder; and impulse responses."""
    (tmp_path / "noise" / "street").mkdir(parents=True)
    for name in ("a.wav", "street/b.flac"):
        soundfile.write(tmp_path / "noise" / name, noise(8000, len(name)) / 32768, 8000)
    (tmp_path / "rooms").mkdir()
    response = np.zeros(400)
    response[100], response[300] = 0.9, 0.4  # the direct sound after 25 ms, and an echo
    soundfile.write(tmp_path / "rooms" / "hall.wav", response, RATE)
    return tmp_path


def corpus(rows: int = 40) -> AudioCorpus:
    return audio_corpus([noise(2000, n).astype(np.int16) for n in range(rows)], None)


def vary(folder: Path, seed: int = 1, **keys: object) -> tuple[AudioCorpus, RoomCorpus]:
    audio = Audio.model_validate({"sample_rate": RATE, "mel_bands": 16, **keys})
    said: list[str] = []
    change = in_rooms(audio, str(folder), said.append)
    assert change is not None
    assert said
    plain = corpus()
    made = change(plain, np.random.default_rng(seed))
    assert isinstance(made, RoomCorpus)
    return plain, made


def test_a_room_is_a_convolution_that_delays_nothing_and_keeps_the_energy() -> None:
    sound, response = noise(500), np.zeros(300, np.float32)
    response[[100, 150, 220]] = [0.8, 0.4, -0.2]
    made = reverberated(sound, from_direct_sound(response))
    expected = np.convolve(sound, response)[100:600]  # from the direct sound on
    expected *= np.sqrt(np.square(sound).sum() / np.square(expected).sum())
    np.testing.assert_allclose(made, expected, rtol=1e-3, atol=1.0)
    alone = np.array([0.0, 0.5], np.float32)  # the direct sound and nothing else
    np.testing.assert_allclose(reverberated(sound, from_direct_sound(alone)), sound, atol=0.1)


@pytest.mark.parametrize("snr", [0.0, 20.0])
def test_noise_is_so_many_decibels_below(snr: float) -> None:
    sound = noise(4000)
    for size in (300, 9000):  # repeated, or a part of it
        added = noisy(sound, noise(size, 2), snr, np.random.default_rng(1)) - sound
        found = 10 * np.log10(np.square(sound).mean() / np.square(added).mean())
        assert found == pytest.approx(snr, abs=0.01)


def test_a_share_of_the_recordings_is_changed_the_same_way_each_time(folder: Path) -> None:
    keys = {
        "reverberation": {"folder": "rooms", "share": 0.4},
        "recorded_noise": {"folder": "noise", "share": 0.4, "snr": [5.0, 10.0]},
    }
    plain, made = vary(folder, **keys)
    same = [np.array_equal(plain.wave(row), made.wave(row)) for row in range(40)]
    assert 7 <= sum(same) <= 22  # 0.6 × 0.6 of 40 are 14
    assert np.array_equal(np.diff(plain.source_offsets), np.diff(made.source_offsets))
    again = vary(folder, **keys)[1]
    for row in range(40):
        assert np.array_equal(made.wave(row), again.wave(row))
    waves, lengths = made.waves(np.arange(40))
    assert np.array_equal(waves[7, : lengths[7]], made.wave(7))
    other = vary(folder, seed=2, **keys)[1]
    assert any(not np.array_equal(made.wave(row), other.wave(row)) for row in range(40))


def test_folders_that_cannot_be_used_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.wav").write_text("no audio")
    (tmp_path / "long").mkdir()
    soundfile.write(tmp_path / "long" / "a.wav", noise(11 * RATE) / 32768, RATE)
    for name, said in {
        "none": r"recorded_noise.folder is none, but .*none does not exist; give a folder",
        "noise/a.wav": r"is noise/a.wav, but .* is a file; give a folder with audio files",
        "empty": r"is empty, but there is no audio file \(.wav, .* in .*empty; give a folder",
        "texts": r"is texts, of which no file can be used: .*a.wav",
    }.items():
        with pytest.raises(DataError, match=said):
            vary(folder, recorded_noise={"folder": name})
    with pytest.raises(DataError, match=r"all longer than 10 s: they are recordings"):
        vary(folder, reverberation={"folder": "long"})
