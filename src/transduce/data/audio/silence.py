"""Silence detection (energy-based voice activity detection): cuts long recordings at pauses.

The noise level may change, so the threshold is estimated anew around each second. Only one loudness
value for every 10 ms is kept: a few megabytes for a day of audio.
"""

from __future__ import annotations

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
