"""Sound as a model hears it: one channel, one rate, float32, whole, in pieces, or as a stream."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from transduce.data.audio.recording import Facts, Recording, Samples, load_audio_package
from transduce.errors import DataError

RATE = 16_000
SHORTEST = 0.025  # seconds: one frame

# Around a piece that is read for itself: what a resampler's filter reaches over, and what Vorbis
# needs to swing in after a jump (its first block is wrong).
MARGIN = 0.25

SILENT = 2.0**-13  # a peak of four steps of 16 bits
STEP = 2.0**-15
CLIPPED_SHARE = 1e-3
CANCELLED = 0.01
MOST_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class Waveform:
    """Samples of one channel, full scale ±1, and what a person should know of them."""

    samples: Samples
    rate: int
    remarks: tuple[str, ...] = ()
    silent: bool = False
    """Whether there is nothing to hear, as the first remark says."""

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


def audio_facts(path: Path | str) -> Facts:
    """Length, rate, channels and format from the header alone. Raises DataError."""
    with Recording(path) as recording:
        return recording.facts


def read_audio(
    path: Path | str, rate: int = RATE, start: float = 0.0, end: float | None = None
) -> Waveform:
    """A file, or its seconds from `start` to `end`, as one channel of `rate` samples a second.

    A piece is what a slice of the whole would be, and no more than it is read. Silence, clipping
    and channels that cancel each other are remarked; raises DataError for all that cannot be used.
    """
    with Recording(path) as recording:
        blocks, skip, size = _piece(recording, rate, start, end)
        mono, channel_peak = _mixed(blocks)
        native = recording.rate
    remarks = tuple(f"{path} {flaw}" for flaw in flaws(mono, channel_peak))
    samples = resampled(mono, native, rate)[skip:][:size]
    _check_length(samples, rate, str(path), start)
    return Waveform(samples, rate, remarks, silent=_is_silent(mono, channel_peak))


def audio_from_samples(
    samples: npt.NDArray[Any], native: int, rate: int = RATE, name: str = "audio"
) -> Waveform:
    """Samples at hand, as `read_audio` gives those of a file.

    One channel [n], or some [n, channels] or [channels, n]: the shorter side. Numbers with a point
    have full scale ±1, int16 and int32 their own. Raises DataError, which calls them `name`.
    """
    if samples.dtype in (np.int16, np.int32):
        samples = samples / -float(np.iinfo(samples.dtype).min)
    elif not np.issubdtype(samples.dtype, np.floating):
        raise DataError(
            f"{name} has samples of type {samples.dtype}; give floating point numbers of full "
            f"scale ±1, int16 or int32"
        )
    channels = samples[:, None] if samples.ndim == 1 else samples
    if channels.ndim != 2 or min(channels.shape) > MOST_CHANNELS:
        raise DataError(
            f"{name} has the shape {list(samples.shape)}; give [samples], or [samples, channels]"
        )
    if channels.shape[0] < channels.shape[1]:
        channels = channels.T
    channels = channels.astype(np.float32)
    if not np.isfinite(channels).all():
        raise DataError(f"{name} holds samples that are NaN or infinite")
    mono, channel_peak = _mixed(iter([channels] if channels.size else []))
    remarks = tuple(f"{name} {flaw}" for flaw in flaws(mono, channel_peak))
    made = resampled(mono, native, rate)
    _check_length(made, rate, name)
    return Waveform(made, rate, remarks, silent=_is_silent(mono, channel_peak))


def _check_length(samples: Samples, rate: int, name: str, start: float = 0.0) -> None:
    if len(samples) < SHORTEST * rate:
        raise DataError(
            f"{name} has {1000 * len(samples) / rate:.0f} ms of audio"
            + (f" from {start:g} s on" if start else "")
            + f", less than one frame of {1000 * SHORTEST:.0f} ms: leave it out"
        )


def audio_blocks(path: Path | str, rate: int = RATE) -> Iterator[Samples]:
    """A file of any length as blocks of some seconds, which joined are what `read_audio` reads."""
    with Recording(path) as recording:
        if recording.rate == rate:
            yield from (block.mean(axis=1) for block in recording.blocks())
            return
        soxr = load_audio_package("soxr")
        stream = soxr.ResampleStream(recording.rate, rate, 1, dtype="float32")
        for block in recording.blocks():
            yield stream.resample_chunk(block.mean(axis=1))
        yield stream.resample_chunk(np.empty(0, dtype=np.float32), last=True)


def resampled(samples: Samples, native: int, rate: int) -> Samples:
    """Samples of one channel at another rate, by soxr's high quality."""
    if native == rate:
        return samples
    made: Samples = load_audio_package("soxr").resample(samples, native, rate)
    return made


def flaws(mono: Samples, channel_peak: float = 0.0) -> list[str]:
    """What ails samples as they were recorded, before resampling: a phrase for each flaw.

    `channel_peak` is the peak of the loudest channel that was mixed.
    """
    peak = _peak(mono)
    if _is_silent(mono, channel_peak):
        cancelled = "has channels that cancel each other when they are mixed: give it one of them"
        return [cancelled if channel_peak > SILENT else "is silent"]
    found = []
    if peak > 2:
        found.append(f"is {peak:,.0f} times as loud as full scale: its numbers may not be ±1")
    # Clipping leaves flat tops; three equal samples at the peak are rarely chance.
    at_peak = np.abs(mono) >= min(peak, 1.0) - STEP
    flat = at_peak[:-2] & at_peak[1:-1] & at_peak[2:]
    if flat.sum() > CLIPPED_SHARE * len(mono):
        found.append("is clipped: it was recorded too loud")
    return found


def _peak(mono: Samples) -> float:
    return float(np.abs(mono).max(initial=0.0))


def _is_silent(mono: Samples, channel_peak: float) -> bool:
    """Whether nothing was recorded, or nothing was left of it when channels were mixed."""
    cancelled = channel_peak > SILENT and _peak(mono) < CANCELLED * channel_peak
    return cancelled or _peak(mono) < SILENT


def _piece(
    recording: Recording, rate: int, start: float, end: float | None
) -> tuple[Iterator[Samples], int, int | None]:
    """The frames to read, and which samples of what they become are wanted: the first, how many.

    Reading begins where a frame of the file and a sample of the result fall together, so that a
    piece lies on the same grid as the whole.
    """
    if start < 0 or (end is not None and end <= start):
        raise DataError(f"{recording.path}: a piece from {start} s to {end} s cannot be")
    if recording.facts.seconds <= start:
        raise DataError(
            f"{recording.path} lasts {recording.facts.seconds:.2f} s: there is nothing at {start} s"
        )
    grid = recording.rate // math.gcd(recording.rate, rate)
    first = max(0, int((start - MARGIN) * recording.rate)) // grid * grid
    last = None if end is None else math.ceil((end + MARGIN) * recording.rate)
    skip = round(start * rate) - first * rate // recording.rate
    size = None if end is None else round(end * rate) - round(start * rate)
    return recording.blocks(first, last), skip, size


def _mixed(blocks: Iterator[Samples]) -> tuple[Samples, float]:
    """The mean of the channels, and the peak that any channel had."""
    mono, peak = [np.empty(0, dtype=np.float32)], 0.0
    for block in blocks:
        mono.append(block.mean(axis=1))
        peak = max(peak, float(np.abs(block).max()))
    return np.concatenate(mono), peak
