"""How many live sessions recognition keeps up with, as measured.

A second of audio keeps the live thread busy for a while, its real-time factor. Sessions that are
spoken into need so much of each second; more of them than fill it would fall behind without end. In
a batch a session costs less than alone, so that the estimate grows with the sessions that there
are; it falls where requests, or other programs, take the processor.
"""

from __future__ import annotations

import math
import time

import numpy as np

from transduce.data.audio.corpus import Wave
from transduce.tasks.live import LiveRecogniser

REMEMBERED = 60.0  # seconds of audio over which it is measured
PROBE_SECONDS = 2.0
PROBE_SESSIONS = 4
LONG_PROBE = 0.5  # seconds for one session, above which no batch of them is tried


class Capacity:
    """The real-time factor of live recognition, from all of its last work."""

    def __init__(self) -> None:
        self._busy = self._audio = 0.0

    def add(self, busy: float, audio: float) -> None:
        """So many seconds were spent on so many seconds of audio."""
        kept = math.exp(-audio / REMEMBERED)
        self._busy = kept * self._busy + busy
        self._audio = kept * self._audio + audio

    @property
    def factor(self) -> float:
        """Seconds for a second of audio; 0: not measured yet."""
        return self._busy / self._audio if self._audio else 0.0

    def sessions(self, share: float) -> float:
        """So many sessions keep it busy for a share of its time; inf: not measured yet."""
        return share / self.factor if share and self.factor else math.inf


def probe(recogniser: LiveRecogniser) -> tuple[float, float]:
    """Recognise some noise, alone and in a small batch: the seconds that it took, and those of
    audio. The first use of a model is slower than others: it is not counted."""
    noise = _bursts(PROBE_SECONDS, recogniser.rate)
    _recognise(recogniser, noise, 1)
    busy = _recognise(recogniser, noise, 1)
    if busy > LONG_PROBE:
        return busy, PROBE_SECONDS
    return _recognise(recogniser, noise, PROBE_SESSIONS), PROBE_SECONDS * PROBE_SESSIONS


def _recognise(recogniser: LiveRecogniser, samples: Wave, count: int) -> float:
    sessions = [recogniser.session() for _ in range(count)]
    start = time.perf_counter()
    try:
        for session in sessions:
            session.push(samples)
            session.end()
        recogniser.advance(sessions)
        return time.perf_counter() - start
    finally:
        for session in sessions:
            session.close()


def _bursts(seconds: float, rate: int) -> Wave:
    """Noise as loud as speech, with the pauses of syllables."""
    time_T = np.arange(round(seconds * rate)) / rate
    loudness_T = np.clip(np.sin(2 * np.pi * 3 * time_T), 0.05, 1)
    noise_T = np.random.default_rng(1).normal(0, 3000, len(time_T))
    samples: Wave = (loudness_T * noise_T).clip(-32768, 32767).astype(np.int16)
    return samples
