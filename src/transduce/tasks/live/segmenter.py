"""Cuts audio that arrives into utterances, and says which of it is to be recognised, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transduce.data.audio.corpus import Wave
from transduce.data.audio.silence import HOP, SMOOTH, VoiceActivity
from transduce.tasks.live.settings import SENTENCE_ENDS, Endpointing

ONSET = 0.06  # seconds of speech in a row with which an utterance begins
PADDING = 0.15  # seconds before it that belong to it,
MARGIN = 0.15  # and after it

PARTIAL, PAUSE, END = "partial", "pause", "end"


@dataclass(frozen=True)
class Piece:
    """Audio of an utterance from its start: what is known so far, what was said before a pause
    that may be its end, or all of it."""

    kind: str
    wave: Wave
    start: float
    end: float
    """Seconds since the session began."""


class Segmenter:
    """Utterances by voice activity: one begins with speech and ends with silence, or when it has
    the greatest length; then it is cut at its quietest point. Positions count frames of 10 ms.
    """

    def __init__(
        self, rate: int, rules: Endpointing, every: float, longest: float, margin: float
    ) -> None:
        """every: seconds of new audio after which it is recognised again. margin: decibels of
        speech above the noise."""
        self.rules = rules
        self.activity = VoiceActivity(rate, margin)
        self._every, self._longest = _frames(every), _frames(longest)
        self._rate, self._size = rate, self.activity.size
        self._kept = np.empty(0, np.int16)
        """Samples from `_first` on."""
        self._first = self._looked = 0
        self._loud: list[bool] = []
        """Of the frames that were not looked at yet."""
        self._in_a_row = 0
        self._start: int | None = None
        """Of the utterance; None: nobody is speaking."""
        self._spoken = self._recognised = 0
        self._paused = False
        self.text = ""
        """The last hypothesis for the utterance; who recognises sets it."""

    @property
    def has_more(self) -> bool:
        return bool(self._loud)

    @property
    def waiting_seconds(self) -> float:
        return len(self._loud) * HOP

    def add(self, wave: Wave, ended: bool = False) -> None:
        """Samples at the end of the others; ended: there will be no more."""
        if len(wave) or ended:
            self._loud += self.activity.feed(wave, ended)
            self._kept = np.concatenate((self._kept, wave))

    def next(self, ended: bool = False) -> Piece | None:
        """Look at what was added, up to the next piece to be recognised; None: at all of it."""
        done = 0
        try:
            for loud in self._loud:
                done += 1
                self._looked += 1
                found = self._frame(loud)
                if found is not None:
                    return found
        finally:
            del self._loud[:done]
        if self._start is None:
            self._forget(self._looked - self._in_a_row - _frames(PADDING))
            return None
        if ended:
            return self._end()
        silent = self._looked > self._spoken
        if not silent and self._looked - max(self._recognised, self._start) >= self._every:
            self._recognised = self._looked
            return self._piece(PARTIAL, self._looked)
        return None

    def drop(self) -> None:
        """Nothing was recognised: go on as if the utterance had not begun."""
        self._start = None
        self._in_a_row = 0

    def _frame(self, loud: bool) -> Piece | None:
        self._in_a_row = self._in_a_row + 1 if loud else 0
        if self._start is None:
            if self._in_a_row >= _frames(ONSET):
                before = self._looked - self._in_a_row - _frames(PADDING)
                self._forget(before)
                self._begin(max(before, self._first // self._size))
            return None
        if loud:
            self._spoken, self._paused = self._looked, False
        length = self._looked - self._start
        silence = (self._looked - self._spoken) * HOP
        if silence >= self.rules.silence:
            return self._end()
        if length >= self._longest:
            return self._cut()
        if silence >= self.rules.sentence_silence and not self._paused:
            self._paused = True
            self._recognised = self._looked
            return self._piece(PAUSE, self._spoken + _frames(MARGIN))
        if not self.text and length * HOP >= self.rules.no_speech and self._recognised:
            self.drop()  # loud, but no speech: it begins anew
        return None

    @property
    def ends_a_sentence(self) -> bool:
        return self.text.rstrip().endswith(SENTENCE_ENDS)

    def end_at_pause(self) -> None:
        """The utterance is over: the piece before the pause was all of it."""
        self._start, self._in_a_row = None, 0

    def _begin(self, start: int) -> None:
        self._start = start
        self._spoken = self._looked
        self._recognised, self._paused, self.text = 0, False, ""

    def _end(self) -> Piece:
        piece = self._piece(END, self._spoken + _frames(MARGIN))
        self._start, self._in_a_row = None, 0
        return piece

    def _cut(self) -> Piece:
        """At the quietest point of the second half; the rest begins the next utterance."""
        assert self._start is not None
        half = self._start + self._longest // 2
        samples = self._samples(half, self._looked).reshape(-1, self._size).astype(np.float32)
        power = np.convolve(samples.var(axis=1), np.ones(SMOOTH), mode="same")
        edge = SMOOTH // 2
        cut = half + edge + int(np.argmin(power[edge : len(power) - edge]))
        piece = self._piece(END, cut)
        spoken = self._spoken
        self._forget(cut)
        self._begin(cut)
        self._spoken = max(spoken, cut)
        return piece

    def _piece(self, kind: str, end: int) -> Piece:
        assert self._start is not None
        end = min(end, self._looked)
        seconds = [place * self._size / self._rate for place in (self._start, end)]
        return Piece(kind, self._samples(self._start, end).copy(), *seconds)

    def _samples(self, start: int, end: int) -> Wave:
        return self._kept[start * self._size - self._first : end * self._size - self._first]

    def _forget(self, before: int) -> None:
        """Free the audio of frames that are not needed any more."""
        samples = before * self._size - self._first
        if samples > 0:
            self._kept = self._kept[samples:].copy()
            self._first += samples


def _frames(seconds: float) -> int:
    return max(1, round(seconds / HOP))
