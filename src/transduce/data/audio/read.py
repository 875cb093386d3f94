"""Read audio as mono float32 samples at one rate: a whole file, a segment, or a stream of
blocks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from transduce.data.audio.recording import AudioInfo, Recording, Samples, load_audio_package
from transduce.errors import DataError
from transduce.storage.members import AudioPlace, audio_place

RATE = 16_000
SHORTEST = 0.025  # seconds: one frame

# Extra samples around a segment: the reach of the resampling filter, and what a Vorbis decoder
# needs after a seek (its first block is wrong).
MARGIN = 0.25

SILENT = 2.0**-13  # a peak of four steps of 16 bits
STEP = 2.0**-15
CLIPPED_SHARE = 1e-3
CANCELLED = 0.01
MAX_CHANNELS = 64


@dataclass(frozen=True, slots=True)
class Waveform:
    """Mono samples, full scale ±1, and warnings about them."""

    samples: Samples
    rate: int
    remarks: tuple[str, ...] = ()
    silent: bool = False
    """Whether it is silent, as the first remark says."""

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate

    @property
    def remark(self) -> str:
        """All remarks in one line."""
        return "; ".join(self.remarks)


def audio_info(path: AudioPlace | str) -> AudioInfo:
    """Length, rate, channels and format from the header alone. Raises DataError."""
    with Recording(path) as recording:
        return recording.info


def read_audio(
    path: AudioPlace | str,
    rate: int = RATE,
    start: float = 0.0,
    end: float | None = None,
    partial: bool = False,
) -> Waveform:
    """A file, or its segment from `start` to `end` in seconds, as mono samples at `rate`.

    A segment equals a slice of the whole file, and only that part is read. Silence, clipping and
    channels that cancel each other give remarks; raises DataError for audio that cannot be used.
    partial: of a truncated or damaged file what there is, with a remark.
    """
    with Recording(path, partial) as recording:
        blocks, skip, size = _piece(recording, rate, start, end)
        mono, peaks = _mixed(blocks)
        native, cut = recording.rate, recording.cut
    found = flaws(mono, peaks)
    if cut:
        found.append(f"is truncated or damaged: {len(mono) / native:.2f} s of it are used")
    remarks = tuple(f"{path} {flaw}" for flaw in found)
    samples = resampled(mono, native, rate)[skip:][:size]
    _check_length(samples, rate, str(path), start)
    return Waveform(samples, rate, remarks, silent=peaks.silent)


def audio_from_samples(
    samples: npt.NDArray[Any], native: int, rate: int = RATE, name: str = "audio"
) -> Waveform:
    """Samples in memory, as `read_audio` gives those of a file.

    Mono [n], or several channels [n, channels] or [channels, n]: the shorter side. Floating point
    samples have full scale ±1, int16 and int32 their own. Raises DataError, which calls them
    `name`.
    """
    kind = samples.dtype.kind
    if kind == "i" and samples.itemsize in (2, 4):
        samples = samples / -float(np.iinfo(samples.dtype).min)
    elif kind != "f":
        raise DataError(
            f"{name} has samples of type {samples.dtype}; give floating point numbers of full "
            f"scale ±1, int16 or int32"
        )
    channels = samples[:, None] if samples.ndim == 1 else samples
    if channels.ndim != 2 or min(channels.shape) > MAX_CHANNELS:
        raise DataError(
            f"{name} has the shape {list(samples.shape)}; give [samples], or [samples, channels]"
        )
    if channels.shape[0] < channels.shape[1]:
        channels = channels.T
    channels = channels.astype(np.float32, copy=False)
    mono, peaks = _mixed(iter([channels] if channels.size else []))
    if not math.isfinite(peaks.channel):
        raise DataError(f"{name} holds samples that are NaN or infinite")
    remarks = tuple(f"{name} {flaw}" for flaw in flaws(mono, peaks))
    made = resampled(mono, native, rate)
    _check_length(made, rate, name)
    return Waveform(made, rate, remarks, silent=peaks.silent)


def _check_length(samples: Samples, rate: int, name: str, start: float = 0.0) -> None:
    if len(samples) < SHORTEST * rate:
        raise DataError(
            f"{name} has {1000 * len(samples) / rate:.0f} ms of audio"
            + (f" from {start:g} s on" if start else "")
            + f", less than one frame of {1000 * SHORTEST:.0f} ms: leave it out"
        )


def decode_all(path: AudioPlace | str) -> None:
    """Raises DataError if a file is truncated or damaged, also where its header does not tell, as
    of FLAC."""
    with Recording(path) as recording:
        for _ in recording.blocks():
            pass


def check_audible(path: AudioPlace | str) -> None:
    """Raises DataError if a file of any length is truncated, damaged or silent."""
    with Recording(path) as recording:
        peaks = peaks_of(recording.blocks())
    if peaks.silent:
        raise DataError(f"{path} {peaks.why_silent}")


def audio_blocks(path: AudioPlace | str, rate: int = RATE) -> Iterator[Samples]:
    """A file of any length as blocks of some seconds; concatenated they equal `read_audio`."""
    with Recording(path) as recording:
        if recording.rate == rate:
            yield from (_mean_of_channels(block) for block in recording.blocks())
            return
        soxr = load_audio_package("soxr")
        stream = soxr.ResampleStream(recording.rate, rate, 1, dtype="float32")
        try:
            for block in recording.blocks():
                yield stream.resample_chunk(_mean_of_channels(block))
            yield stream.resample_chunk(np.empty(0, dtype=np.float32), last=True)
        finally:
            del stream  # soxr complains if an error's traceback keeps it until Python ends


def resampled(samples: Samples, native: int, rate: int) -> Samples:
    """Mono samples resampled to another rate, with soxr's high quality."""
    if native == rate:
        return samples
    made: Samples = load_audio_package("soxr").resample(samples, native, rate)
    return made


class Peaks(NamedTuple):
    """The greatest absolute value of the mono samples, and that of any channel before mixing."""

    mono: float
    channel: float

    @property
    def silent(self) -> bool:
        """Whether the recording is silent, or its channels cancel each other when mixed."""
        cancelled = self.channel > SILENT and self.mono < CANCELLED * self.channel
        return cancelled or self.mono < SILENT

    @property
    def why_silent(self) -> str:
        """A phrase about a silent recording."""
        cancelled = "has channels that cancel each other when they are mixed: give it one of them"
        return cancelled if self.channel > SILENT else "is silent"


def peaks_of(blocks: Iterable[Samples]) -> Peaks:
    """The peaks of blocks of frames, one block in memory at a time."""
    peaks = Peaks(0.0, 0.0)
    for block in blocks:
        mono = _peak(_mean_of_channels(block))
        peaks = Peaks(max(peaks.mono, mono), max(peaks.channel, _peak(block)))
    return peaks


def flaws(mono: Samples, peaks: Peaks) -> list[str]:
    """Problems of the samples as recorded, before resampling: a phrase for each."""
    peak = peaks.mono
    if peaks.silent:
        return [peaks.why_silent]
    found = []
    if peak > 2:
        found.append(
            f"is {peak:,.0f} times as loud as full scale: its samples may not be scaled to ±1"
        )
    # Clipping leaves flat tops; three equal samples at the peak are rarely chance.
    loud, maximum = min(peak, 1.0) - STEP, CLIPPED_SHARE * len(mono)
    if np.count_nonzero(mono >= loud) + np.count_nonzero(mono <= -loud) > maximum:
        at_peak = np.abs(mono) >= loud
        flat = at_peak[:-2] & at_peak[1:-1] & at_peak[2:]
        if np.count_nonzero(flat) > maximum:
            found.append("is clipped: it was recorded too loud")
    return found


def _peak(samples: Samples) -> float:
    """The greatest absolute value, without a copy of all of them; NaN if one is."""
    return max(float(samples.max(initial=0.0)), -float(samples.min(initial=0.0)))


def _piece(
    recording: Recording, rate: int, start: float, end: float | None
) -> tuple[Iterator[Samples], int, int | None]:
    """The frames to read, and which resampled samples are wanted: the first, how many.

    Reading begins where a frame of the file and a sample of the result coincide, so that a segment
    is on the same sampling grid as the whole file.
    """
    if start < 0 or (end is not None and end <= start):
        raise DataError(f"{recording.path}: a segment from {start} s to {end} s is not possible")
    if recording.info.seconds <= start:
        raise DataError(
            f"{recording.path} lasts {recording.info.seconds:.2f} s: it has no audio at {start} s"
        )
    grid = recording.rate // math.gcd(recording.rate, rate)
    first = max(0, int((start - MARGIN) * recording.rate)) // grid * grid
    last = None if end is None else math.ceil((end + MARGIN) * recording.rate)
    skip = round(start * rate) - first * rate // recording.rate
    size = None if end is None else round(end * rate) - round(start * rate)
    return recording.blocks(first, last), skip, size


def _mixed(blocks: Iterator[Samples]) -> tuple[Samples, Peaks]:
    """The mean of the channels (downmix to mono), and the peaks."""
    parts, channel, alone = [], 0.0, True
    for block in blocks:
        parts.append(_mean_of_channels(block))
        channel = float(np.maximum(channel, _peak(block)))  # NaN stays
        alone = alone and block.shape[1] == 1
    mono = parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.float32), *parts])
    return mono, Peaks(channel if alone else _peak(mono), channel)


def _mean_of_channels(block: Samples) -> Samples:
    """Of one channel that channel: numpy takes long for the mean of each single value."""
    mean: Samples = block[:, 0] if block.shape[1] == 1 else block.mean(axis=1)
    return mean


# ----------------------------------------------------------------------------------------------
# The location of audio as text: a file name, with start and end in seconds for a segment.


def place_of(file: AudioPlace, start: float | None = None, end: float | None = None) -> str:
    """An audio file, or its segment from `start` to `end` in seconds, as text: a.wav#t=1.5,2.25.

    https://www.w3.org/TR/media-frags/#naming-time
    """
    if start is None and end is None:
        return str(file)
    times = [f"{seconds:.6f}".rstrip("0").rstrip(".") for seconds in (start or 0.0, end or 0.0)]
    return f"{file}#t={times[0]}" + ("" if end is None else f",{times[1]}")


_PART = re.compile(r"(?P<file>.*)#t=(?P<start>\d*\.?\d*)(?:,(?P<end>\d+\.?\d*))?", re.DOTALL)


def parse_place(source: str) -> tuple[AudioPlace, float, float | None]:
    """The file, start and end of a location that `place_of` made."""
    part = _PART.fullmatch(source)
    if part is None or part["start"] == ".":
        return audio_place(source), 0.0, None
    end = float(part["end"]) if part["end"] else None
    return audio_place(part["file"]), float(part["start"] or 0), end
