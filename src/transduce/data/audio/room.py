"""Recorded noise and room impulse responses in training, from folders of one's own.

A share of the recordings sounds as in one of the rooms, and a share has one of the noises under it.
Which ones is drawn anew in each epoch, from the random generator of that epoch, so that a resumed
run goes on exactly. Both leave a recording as long as it is, with its speech where it was.

    N recordings
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio.corpus import FULL_SCALE, AudioCorpus, Wave, read_waves
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.files import locate_here
from transduce.data.tokens.subword_regularization import Vary
from transduce.errors import DataError
from transduce.recipe import Audio
from transduce.recipe.audio import RecordedNoise, Reverberation

SUFFIXES = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aif", ".aiff", ".sph")
LONGEST_RESPONSE = 10.0  # seconds; what is longer is a recording, and no impulse response
MAX_NOISE = 4 * 3600.0  # seconds that are kept in memory

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Rooms:
    """What training hears recordings in."""

    responses: list[Floats]
    """Impulse responses, from the direct sound on."""
    noises: list[Floats]
    reverberation: Reverberation | None
    recorded_noise: RecordedNoise | None

    def heard(self, wave: Wave, random: np.random.Generator) -> Wave:
        """A recording as it sounds in a room with noise, or as it is."""
        draws = random.random(2)
        sound = wave.astype(np.float32)
        changed = False
        if self.reverberation is not None and draws[0] < self.reverberation.share:
            sound = reverberated(sound, self.responses[random.integers(len(self.responses))])
            changed = True
        if self.recorded_noise is not None and draws[1] < self.recorded_noise.share:
            noise = self.noises[random.integers(len(self.noises))]
            low, high = self.recorded_noise.snr
            sound = with_noise(sound, noise, random.uniform(low, high), random)
            changed = True
        if not changed:
            return wave
        return np.rint(sound).clip(-FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def reverberated(sound: Floats, response: Floats) -> Floats:
    """The convolution with an impulse response, as long as the sound and as loud."""
    size = 1 << (len(sound) + len(response) - 1).bit_length()
    spectrum = np.fft.rfft(sound, size) * np.fft.rfft(response, size)
    made = np.fft.irfft(spectrum, size)[: len(sound)].astype(np.float32)
    before, after = float(np.square(sound).sum()), float(np.square(made).sum())
    return made * np.float32(np.sqrt(before / after)) if after > 0 else sound


def with_noise(sound: Floats, noise: Floats, snr: float, random: np.random.Generator) -> Floats:
    """The sound with a part of a noise, repeated where it is shorter, so many decibels below it."""
    repeats = -(-len(sound) // len(noise)) + 1
    start = int(random.integers(len(noise)))
    part = np.tile(noise, repeats)[start : start + len(sound)]
    power, of_noise = float(np.square(sound).mean()), float(np.square(part).mean())
    if not power or not of_noise:
        return sound
    return sound + part * np.float32(np.sqrt(power / of_noise) * 10 ** (-snr / 20))


def from_direct_sound(response: Floats) -> Floats:
    """An impulse response without what is before its loudest sample: speech is not delayed."""
    return response[int(np.abs(response).argmax()) :]


@dataclass(frozen=True, kw_only=True)
class RoomCorpus(AudioCorpus):
    """Recordings of another corpus, in rooms and noise."""

    recordings: AudioCorpus
    rooms: Rooms
    seeds_N: NDArray[np.int64]
    """From which the room and the noise of each row are drawn."""

    def source(self, row: int) -> NDArray[Any]:
        random = np.random.Generator(np.random.PCG64(int(self.seeds_N[row])))
        return self.rooms.heard(self.recordings.wave(row), random)


def in_rooms(audio: Audio, folder: str | None, print_line: Callable[[str], None]) -> Vary | None:
    """The function that puts the recordings of a corpus into rooms and noise in each epoch; None if
    the recipe does not ask for it. Relative folders start at `folder`.

    Raises DataError for a folder without usable audio.
    """
    if audio.reverberation is None and audio.recorded_noise is None:
        return None
    responses: list[Floats] = []
    noises: list[Floats] = []
    if audio.reverberation is not None:
        key = "audio.reverberation.folder"
        found = _read(key, audio.reverberation.folder, folder, audio.sample_rate, print_line)
        longest = LONGEST_RESPONSE * audio.sample_rate
        responses = [from_direct_sound(one) for one in found if len(one) <= longest]
        if not responses:
            raise DataError(
                f"{key} is {audio.reverberation.folder}, whose files are all longer than "
                f"{LONGEST_RESPONSE:g} s: they are recordings, and no impulse responses; for noise "
                f"use audio.recorded_noise"
            )
        if len(responses) < len(found):
            print_line(
                f"  warning: {len(found) - len(responses):,} files of {key} are longer than "
                f"{LONGEST_RESPONSE:g} s and left out: they are no impulse responses"
            )
    if audio.recorded_noise is not None:
        key = "audio.recorded_noise.folder"
        noises = _read(key, audio.recorded_noise.folder, folder, audio.sample_rate, print_line)
        kept = np.cumsum([len(one) for one in noises]) <= MAX_NOISE * audio.sample_rate
        if not kept.all():
            print_line(
                f"  warning: {key} has more than {MAX_NOISE / 3600:g} hours; the first "
                f"{max(int(kept.sum()), 1):,} files are used"
            )
            noises = noises[: max(int(kept.sum()), 1)]
    rooms = Rooms(responses, noises, audio.reverberation, audio.recorded_noise)

    def vary(encoded: Encoded, random: np.random.Generator) -> Encoded:
        assert isinstance(encoded, AudioCorpus)
        own = {one.name: getattr(encoded, one.name) for one in fields(AudioCorpus)}
        seeds_N = random.integers(1 << 62, size=len(encoded))
        return RoomCorpus(**own, recordings=encoded, rooms=rooms, seeds_N=seeds_N)

    return vary


def _read(
    key: str, name: str, folder: str | None, rate: int, print_line: Callable[[str], None]
) -> list[Floats]:
    """The audio files of a folder and its folders, at one rate; silent ones are left out."""
    place = locate_here(name, folder)
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise DataError(f"{key} is {name}, but {place} {what}; give a folder with audio files")
    files = sorted(one for one in place.rglob("*") if one.suffix.lower() in SUFFIXES)
    if not files:
        endings = ", ".join(SUFFIXES)
        raise DataError(
            f"{key} is {name}, but there is no audio file ({endings}) in {place}; give a folder "
            f"with some"
        )
    read = read_waves([str(one) for one in files], rate)
    usable = [one.wave.astype(np.float32) for one in read if one.wave is not None and len(one.wave)]
    reasons = [one.reason for one in read if one.wave is None]
    if not usable:
        raise DataError(f"{key} is {name}, of which no file can be used: {reasons[0]}")
    left = f"; {len(reasons):,} cannot be used ({reasons[0]})" if reasons else ""
    noun = "file" if len(usable) == 1 else "files"
    print_line(f"{key}: {len(usable):,} {noun} of {name}{left}.")
    return usable
