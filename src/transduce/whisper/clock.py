"""What is decoded of a recording, all of it or its speech alone, and when that was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio.corpus import FULL_SCALE, Wave
from transduce.data.audio.speech_activity import Span, speech_spans, widened

MARGIN = 0.3  # seconds that are kept around speech,
GAP = 1.0  # and of which at least as many are left out

Seconds = NDArray[np.float64]


class Part(NamedTuple):
    """Samples of a recording that are decoded one after the other."""

    sample: int
    """Where it begins in what is decoded."""
    seconds: float
    """Where it begins in the file."""


@dataclass(frozen=True)
class Clock:
    """When the samples that are decoded were heard, in seconds of the file."""

    parts: tuple[Part, ...]
    """The first begins with sample 0."""
    rate: int

    def seconds(self, samples: NDArray[np.int64]) -> Seconds:
        begins = np.array([part.sample for part in self.parts])
        number = np.searchsorted(begins, samples, side="right") - 1
        first = np.array([part.seconds for part in self.parts])[number]
        found: Seconds = first + (samples - begins[number]) / self.rate
        return found

    def span(self, start: int, end: int) -> Span:
        """From the sample `start` to that before `end`, which may be of an earlier part than `end`
        itself."""
        first, last = self.seconds(np.array([start, max(start, end - 1)])).tolist()
        last += 1 / self.rate if end > start else 0.0
        return Span(round(first, 6), round(last, 6))  # so that what touches is equal


def find_speech(wave: Wave, start: float, rate: int) -> list[Span]:
    """When somebody speaks in samples that begin at `start` seconds of their file."""
    found = speech_spans(wave.astype(np.float32) / np.float32(FULL_SCALE), rate)
    return [Span(start + span.start, start + span.end) for span in found]


def keep_speech(wave: Wave, start: float, rate: int, speech: Sequence[Span]) -> tuple[Wave, Clock]:
    """The samples in which somebody speaks, and some around them."""
    seconds = len(wave) / rate
    own = [Span(span.start - start, span.end - start) for span in speech]
    pieces: list[Wave] = []
    parts: list[Part] = []
    length = 0
    for span in widened(own, MARGIN, GAP, seconds):
        first, last = round(span.start * rate), round(span.end * rate)
        parts.append(Part(length, start + first / rate))
        pieces.append(wave[first:last])
        length += last - first
    return np.concatenate([wave[:0], *pieces]), Clock(tuple(parts) or (Part(0, start),), rate)


def within(moments: Seconds, spans: Sequence[Span]) -> NDArray[np.bool_]:
    """Which of these moments are in one of the spans, which rise and do not overlap."""
    if not spans:
        return np.zeros(len(moments), np.bool_)
    number = np.searchsorted([span.start for span in spans], moments, side="right") - 1
    ends = np.array([span.end for span in spans])
    found: NDArray[np.bool_] = (number >= 0) & (moments < ends[number])
    return found
