"""Silence detection (energy-based voice activity detection): cuts long recordings at pauses.

The noise level may change, so the threshold is estimated anew around each second. Only one loudness
value for every 10 ms is kept: a few megabytes for a day of audio.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from transduce.data.audio.recording import Samples

Decibels = npt.NDArray[np.float32]

HOP = 0.010  # seconds of one loudness value
AROUND = 15.0  # seconds before and after from which the threshold is estimated
SMOOTH = 5  # values that are averaged: single frames of noise differ by some decibels
NOTHING = -90.0  # dB relative to full scale: digital silence, which says nothing about the noise

# A pause is within 6 dB of the noise, or in the lowest third between noise and speech where these
# are far apart.
MIN_MARGIN = 6.0
SHARE = 1 / 3
# The noise level is at most this much above the quietest tenth of the recording; what is always
# louder, such as music for a minute, is not a pause.
MAX_DRIFT = 20.0


def cut_at_silences(
    blocks: Iterable[Samples],
    rate: int,
    longest: float = 30.0,
    pause: float = 0.3,
    shortest: float = 0.1,
    margin: float = 0.15,
) -> list[tuple[float, float]]:
    """Segments of speech between pauses, in seconds; `blocks` are those of `audio_blocks`.

    A pause lasts at least `pause` seconds, a segment at least `shortest` and at most `longest`: a
    longer one is cut at its quietest point. Each has up to `margin` seconds of the pauses around
    it. Recordings without any contrast, such as pure noise, have no segments.
    """
    if longest < 1.0 or min(pause, shortest, margin) < 0:
        raise ValueError("Segments must be allowed to last a second, and no time may be negative.")
    loudness = np.concatenate([np.empty(0, dtype=np.float32), *_loudness(blocks, rate)])
    smooth = _smoothed(loudness)
    found = []
    for start, end in _sounding(smooth > _threshold(smooth), pause, shortest, margin):
        found += list(_pieces(smooth, start, end, round(longest / HOP)))
    return [(start * HOP, end * HOP) for start, end in found]


def sounding(samples: Samples, rate: int) -> npt.NDArray[np.bool_]:
    """Which of every 10 ms of audio are not a pause."""
    return loud_frames([samples], rate)


def loud_frames(blocks: Iterable[Samples], rate: int) -> npt.NDArray[np.bool_]:
    """Which of every 10 ms of a recording are not a pause; `blocks` are those of `audio_blocks`."""
    loudness = np.concatenate([np.empty(0, dtype=np.float32), *_loudness(blocks, rate)])
    smooth = _smoothed(loudness)
    loud: npt.NDArray[np.bool_] = smooth > _threshold(smooth)
    return loud


def _loudness(blocks: Iterable[Samples], rate: int) -> Iterator[Decibels]:
    """Loudness of every 10 ms in dB relative to full scale, with the DC offset removed."""
    size = round(HOP * rate)
    rest = np.empty(0, dtype=np.float32)
    for block in blocks:
        samples = np.concatenate((rest, block))
        whole = len(samples) // size * size
        rest = samples[whole:]
        power = samples[:whole].reshape(-1, size).var(axis=1)
        yield 10 * np.log10(np.maximum(power, 1e-10))


def _smoothed(loudness: Decibels) -> Decibels:
    if not len(loudness):
        return loudness
    padded = np.pad(loudness, SMOOTH // 2, mode="edge")
    smooth: Decibels = np.convolve(padded, np.full(SMOOTH, 1 / SMOOTH, np.float32), mode="valid")
    return smooth


def _threshold(loudness: Decibels) -> Decibels:
    """For each frame the loudness below which it counts as quiet."""
    second, around = round(1 / HOP), round(AROUND / HOP)
    audible = loudness[loudness > NOTHING]
    threshold = np.zeros_like(loudness)
    if not len(audible):
        return threshold
    quietest = np.percentile(audible, 10)
    for start in range(0, len(loudness), second):
        near = loudness[max(0, start - around) : start + second + around]
        near = near[near > NOTHING]
        noise, speech = np.percentile(near, (10, 95)) if len(near) else (quietest, quietest)
        noise = min(noise, quietest + MAX_DRIFT)
        threshold[start : start + second] = noise + max(MIN_MARGIN, SHARE * (speech - noise))
    return threshold


def _sounding(
    loud: npt.NDArray[np.bool_], pause: float, shortest: float, margin: float
) -> Iterator[tuple[int, int]]:
    """Runs of loud frames, merged over gaps shorter than a pause, with a margin around each."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], loud, [False])).astype(np.int8)))
    runs: list[list[int]] = []
    for start, end in edges.reshape(-1, 2).tolist():
        if runs and (start - runs[-1][1]) * HOP < pause:
            runs[-1][1] = end
        else:
            runs.append([start, end])
    runs = [run for run in runs if (run[1] - run[0]) * HOP >= shortest]
    wide = round(margin / HOP)
    for number, (start, end) in enumerate(runs):
        before = runs[number - 1][1] if number else -start
        after = runs[number + 1][0] if number + 1 < len(runs) else 2 * len(loud) - end
        # Neighbouring segments share the pause between them.
        yield max(start - wide, (before + start + 1) // 2), min(end + wide, (end + after) // 2)


def _pieces(loudness: Decibels, start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """start … end in parts of at most `longest` frames, cut at the quietest points.

    A cut is in the second half of the longest part allowed, so that no part is very short.
    """
    while end - start > longest:
        first = start + longest // 2
        last = min(start + longest, end - longest // 4)
        cut = first + int(np.argmin(loudness[first:last]))
        yield start, cut
        start = cut
    yield start, end


# ----------------------------------------------------------------------------------------------
# Voice activity detection while audio arrives: loudness against a noise level that is estimated
# from what came before (silence.py, for recordings, also looks ahead).

MEMORY = 30.0  # seconds from which the noise level is estimated
FIRST = 0.5  # seconds that are listened to before anything is decided
# Sound that is always this loud (dB relative to full scale) from the first moment on, or after
# digital silence, is taken for speech over a noise of FIRST_NOISE, which counts as much as
# FIRST_SECONDS of audio.
LOUD = -35.0
FIRST_NOISE = -60.0
FIRST_SECONDS = 0.3
AGAIN = 0.25  # seconds after which the threshold is estimated anew
FLOOR = -62.0  # dB: nothing quieter is speech
FULL_SCALE_DECIBELS = 20 * np.log10(32768.0)


class VoiceActivity:
    """Tells for every 10 ms of 16-bit audio whether it is louder than the noise."""

    def __init__(self, rate: int, margin: float = MIN_MARGIN) -> None:
        """margin: decibels that speech is at least above the noise."""
        self.size = round(HOP * rate)
        """Samples of one frame."""
        self._margin = margin
        self._rest = np.empty(0, np.int16)
        self._recent: deque[float] = deque(maxlen=SMOOTH)
        self._loudness = np.empty(round(MEMORY / HOP), np.float32)
        """Loudness of what is audible, in a ring."""
        self._count = 0
        self._first: list[float] | None = []
        """Loudness that is not decided yet: the first of the audio."""
        self._since = 0
        self._threshold = FLOOR

    def feed(self, wave: npt.NDArray[np.int16], last: bool = False) -> list[bool]:
        """Whether each frame that is decided now is speech. last: decide all of them."""
        samples = np.concatenate((self._rest, wave)) if len(self._rest) else wave
        whole = len(samples) // self.size * self.size
        self._rest = samples[whole:].copy()
        power = samples[:whole].reshape(-1, self.size).astype(np.float32).var(axis=1)
        loudness = 10 * np.log10(np.maximum(power, 1e-10)) - FULL_SCALE_DECIBELS
        smooth = [self._smoothed(value) for value in loudness.tolist()]
        if self._first is None:
            return [self._is_speech(value) for value in smooth]
        self._first += smooth
        if not last and len(self._first) * HOP < FIRST:
            return []
        smooth, self._first = self._first, None
        count = round(FIRST / HOP)
        return self._begin(smooth[:count]) + [self._is_speech(value) for value in smooth[count:]]

    def _smoothed(self, loudness: float) -> float:
        self._recent.append(loudness)
        return sum(self._recent) / len(self._recent)

    def _begin(self, smooth: list[float]) -> list[bool]:
        audible = [value for value in smooth if value > NOTHING]
        if not audible or min(audible) > LOUD:
            audible = [FIRST_NOISE] * round(FIRST_SECONDS / HOP) + audible
        for value in audible:
            self._remember(value)
        self._estimate()
        return [value > self._threshold for value in smooth]

    def _is_speech(self, smooth: float) -> bool:
        if smooth > NOTHING:  # digital silence says nothing about the noise
            self._remember(smooth)
            self._since += 1
            if self._since * HOP >= AGAIN:
                self._estimate()
        return smooth > self._threshold

    def _remember(self, loudness: float) -> None:
        self._loudness[self._count % len(self._loudness)] = loudness
        self._count += 1

    def _estimate(self) -> None:
        self._since = 0
        if not self._count:
            return
        known = self._loudness[: self._count]
        low, high = int(0.1 * (len(known) - 1)), int(0.95 * (len(known) - 1))
        noise, speech = np.partition(known, (low, high))[[low, high]].tolist()
        self._threshold = max(FLOOR, noise + max(self._margin, SHARE * (speech - noise)))
