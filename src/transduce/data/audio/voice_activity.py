"""Voice activity detection while audio arrives: loudness against a noise level that is estimated
from what came before (silence.py, for recordings, also looks ahead)."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from transduce.data.audio.silence import HOP, MIN_MARGIN, NOTHING, SHARE, SMOOTH

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
        self._heard = np.empty(round(MEMORY / HOP), np.float32)
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
        self._heard[self._count % len(self._heard)] = loudness
        self._count += 1

    def _estimate(self) -> None:
        self._since = 0
        if not self._count:
            return
        known = self._heard[: self._count]
        low, high = int(0.1 * (len(known) - 1)), int(0.95 * (len(known) - 1))
        noise, speech = np.partition(known, (low, high))[[low, high]].tolist()
        self._threshold = max(FLOOR, noise + max(self._margin, SHARE * (speech - noise)))
