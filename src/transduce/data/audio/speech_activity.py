"""Voice activity detection in recordings: from when to when somebody speaks.

Silero's network (silero.py) tells, where the package silero-vad is installed. Otherwise three
properties of sound that need no training: speech is not much quieter than the loudest of the
recording; its spectrum changes within a tenth of a second (that of hiss and hum stays); and its
partials move (those of music stay in place while a note lasts). So a voice that holds a note is no
speech. Drums and the talk of a crowd are told apart by Silero's network alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from transduce.data.audio import silero
from transduce.data.audio.read import resampled
from transduce.data.audio.recording import Samples

Frames = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

RATE = silero.RATE
HOP = 0.010  # seconds from one frame to the next
PAUSE = 0.3  # seconds: shorter ones are part of speech
SHORTEST = 0.1  # seconds of speech

# Silero's network
LIKELY = 0.5  # probability at which speech begins,
STILL = 0.35  # and below which it has ended

# Properties of sound. Measured on prompts between silence, hiss, hum and chords: of speech, 95 %
# changes by more than 5 dB, and hiss and hum by less than 2; steadiness is below 0.5, that of
# chords and hum above 0.85.
DEPTH = 45.0  # dB below the loudest twentieth
AUDIBLE = -70.0  # dB relative to full scale: nothing quieter is speech
CHANGE = 2.5  # dB: standard deviation of bands, over all of CHANGE_FRAMES
CHANGE_FRAMES = 7  # before and after
STEADY = 0.65  # correlation of the spectrum with itself STEADY_LAG frames earlier
STEADY_LAG = 12
STEADY_FRAMES = 8  # before and after, over which it is averaged
SMEARED = 0.1  # seconds by which these windows widen speech
BANDS = 24
LOWEST, HIGHEST = 100.0, 3800.0  # Hz, of the bands
AT_ONCE = 6000  # frames in memory: a minute,
AROUND = 100  # and so many before and after


class Span(NamedTuple):
    """Seconds from the start of a recording."""

    start: float
    end: float


def speech_spans(samples: Samples, rate: int = RATE) -> list[Span]:
    """From when to when there is speech, as closely as it can be told, pauses left out."""
    if rate != RATE:
        samples = resampled(samples, rate, RATE)
    seconds = len(samples) / RATE
    if silero.is_installed():
        hop, smeared = silero.FRAME / RATE, 0.0
        speech = _lasting(silero.probabilities(samples))
    else:
        hop, smeared = HOP, SMEARED
        speech = _moving(samples)
    found = []
    for start, end in joined(_runs(speech), round(PAUSE / hop)):
        begin, stop = start * hop + smeared, min(end * hop - smeared, seconds)
        if stop - begin >= SHORTEST:
            found.append(Span(begin, stop))
    return found


def widened(spans: Sequence[Span], margin: float, pause: float, seconds: float) -> list[Span]:
    """Spans with so many seconds around them; those that are less than a pause apart are one."""
    found: list[Span] = []
    for span in spans:
        start, end = max(0.0, span.start - margin), min(seconds, span.end + margin)
        if found and start - found[-1].end < pause:
            found[-1] = Span(found[-1].start, end)
        else:
            found.append(Span(start, end))
    return found


def _lasting(probability: Frames) -> Mask:
    """Speech begins where it is likely, and goes on until it is unlikely (hysteresis)."""
    speech = np.zeros(len(probability), np.bool_)
    for start, end in _runs(probability >= STILL):
        speech[start:end] = probability[start:end].max() >= LIKELY
    return speech


def joined(runs: Iterator[tuple[int, int]], pause: int) -> list[tuple[int, int]]:
    """Runs that are less than a pause apart are one."""
    found: list[tuple[int, int]] = []
    for start, end in runs:
        if found and start - found[-1][1] < pause:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found


def _runs(there: Mask) -> Iterator[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], there, [False])).astype(np.int8)))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


# ------------------------------------------------------------------------ properties of sound

SHORT, LONG = 512, 1024  # samples of a spectrum: one that changes quickly, one with fine partials


def _moving(samples: Samples) -> Mask:
    """Which frames are loud, and change as speech does; a minute at a time, with some around it."""
    hop = round(HOP * RATE)
    count = len(samples) // hop
    padded = np.pad(samples.astype(np.float32), (LONG // 2, LONG))
    found = [np.zeros(0, np.bool_)]
    for start in range(0, count, AT_ONCE):
        first, last = max(0, start - AROUND), min(count, start + AT_ONCE + AROUND)
        speech = _moving_frames(padded[first * hop : (last - 1) * hop + LONG])
        found.append(speech[start - first : start - first + AT_ONCE])
    return np.concatenate(found)[:count]


def _moving_frames(padded: Samples) -> Mask:
    """padded: with LONG / 2 samples before the first frame, and after the last."""
    powers = _spectrum(padded, SHORT) ** 2
    level = 10 * np.log10(_mean_around(powers @ _band_weights().T, 2) + 1e-10)
    loudness = level.max(axis=1)
    audible = loudness[loudness > AUDIBLE]
    if len(loudness) <= STEADY_LAG or not len(audible):
        return np.zeros(len(loudness), np.bool_)
    loud = loudness > max(AUDIBLE, float(np.percentile(audible, 95)) - DEPTH)
    mean = _mean_around(level, CHANGE_FRAMES)
    spread = np.sqrt(np.maximum(_mean_around(level**2, CHANGE_FRAMES) - mean**2, 0.0))
    # Of two spectra that lie STEADY_LAG frames apart, the correlation is of the time between.
    still = np.roll(_correlation(np.sqrt(_spectrum(padded, LONG)[:, 6:160])), -STEADY_LAG // 2)
    still = _mean_around(still[:, None], STEADY_FRAMES)[:, 0]
    speech: Mask = loud & (spread.mean(axis=1) > CHANGE) & (still < STEADY)
    return speech


def _spectrum(padded: Samples, size: int) -> Frames:
    """Magnitudes of the spectra around each frame."""
    hop = round(HOP * RATE)
    inside = padded[(LONG - size) // 2 : len(padded) - (LONG - size) // 2]
    frames = np.lib.stride_tricks.sliding_window_view(inside, size)[::hop]
    window = np.hanning(size).astype(np.float32) / (size / 4)  # a sine of full scale: about 1
    found: Frames = np.abs(np.fft.rfft(frames * window, axis=1)).astype(np.float32)
    return found


def _band_weights() -> Frames:
    """Triangles on the mel scale [band, bin]."""
    hertz = np.fft.rfftfreq(SHORT, 1 / RATE)
    mel = 2595 * np.log10(1 + hertz / 700)
    low, high = (2595 * np.log10(1 + end / 700) for end in (LOWEST, HIGHEST))
    edges = np.linspace(low, high, BANDS + 2)
    below, centre, above = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (mel - below) / (centre - below), (above - mel) / (above - centre)
    weights: Frames = np.maximum(0, np.minimum(rising, falling)).astype(np.float32)
    return weights


def _correlation(spectrum: Frames) -> Frames:
    """Of each spectrum with the one STEADY_LAG frames earlier."""
    centred = spectrum - spectrum.mean(axis=1, keepdims=True)
    size = np.linalg.norm(centred, axis=1) + 1e-6
    found = np.zeros(len(spectrum), np.float32)
    products = (centred[STEADY_LAG:] * centred[:-STEADY_LAG]).sum(axis=1)
    found[STEADY_LAG:] = products / (size[STEADY_LAG:] * size[:-STEADY_LAG])
    return found


def _mean_around(values: Frames, frames: int) -> Frames:
    """The mean over so many frames before and after each."""
    sums = np.cumsum(np.pad(values.astype(np.float64), ((1, 0), (0, 0))), axis=0)
    place = np.arange(len(values))
    low, high = np.maximum(0, place - frames), np.minimum(len(values), place + frames + 1)
    means: Frames = ((sums[high] - sums[low]) / (high - low)[:, None]).astype(np.float32)
    return means
