"""The interface of live recognition: sessions, their transcripts, and what advances them.

A `LiveRecogniser` is a model with its settings. It opens any number of sessions, one for each
speaker, and advances them together, so that all that is ready is computed in one batch:

    with model.live(rate=16000) as session:
        for block in blocks:
            for transcript in session.feed(block):
                print(transcript.text)
        session.finish()

A server calls `push` and `end`, which compute nothing, and then `step` of the recogniser.
Neither sessions nor recognisers may be used by several threads at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from transduce.data.audio.corpus import Wave, to_int16
from transduce.data.audio.recording import load_audio_package
from transduce.decoding.output import TimedWord
from transduce.errors import DataError, ModelError

MIN_RATE, MAX_RATE = 1_000, 768_000  # samples a second that audio may have


@dataclass(frozen=True)
class Transcript:
    """What was recognised of one utterance so far, or, if `final`, all of it.

    Times are seconds since the session began.
    """

    text: str
    final: bool
    utterance: int
    """The number of the utterance in its session, from 0."""
    start: float
    end: float
    words: list[TimedWord] = field(default_factory=list)
    stable: int = 0
    """So many characters at the start will be the same in every later partial transcript of this
    utterance, and, with a streaming encoder, in the final one. Other models recognise the whole
    utterance again at its end, which may change them."""
    confidence: float | None = None

    def to_json(self) -> dict[str, Any]:
        confidence = None if self.confidence is None else round(self.confidence, 4)
        return {
            "text": self.text,
            "final": self.final,
            "utterance": self.utterance,
            "start": round(self.start, 3),
            "end": round(self.end, 3),
            "words": [word.to_json() for word in self.words],
            "stable": self.stable,
            "confidence": confidence,
        }


class LiveSession:
    """One speaker's audio: samples are pushed in at `rate`; the recogniser takes them out as
    16-bit integers at the model's sample rate. A recogniser has a subclass with its own state.
    """

    def __init__(self, recogniser: LiveRecogniser, rate: int, tags: Sequence[str] = ()) -> None:
        if isinstance(rate, bool) or not isinstance(rate, int) or not MIN_RATE <= rate <= MAX_RATE:
            raise ModelError(
                f"a sample rate of {rate!r} is not possible; give a whole number from "
                f"{MIN_RATE:,} to {MAX_RATE:,}, as in rate=16000"
            )
        self.recogniser = recogniser
        self.rate = rate
        self.tags = tuple(tags)
        self.ended = False
        """Whether the end of the audio was announced: nothing more may be pushed."""
        self.done = False
        """Whether all transcripts up to the end have been given; the recogniser sets it."""
        self.closed = False
        self.buffered = 0
        """How many samples, at the model's rate, were not taken yet."""
        self._pushed = 0
        self._blocks: list[Wave] = []
        self._resampler: Any = None
        if rate != recogniser.rate:
            soxr = load_audio_package("soxr")
            self._resampler = soxr.ResampleStream(rate, recogniser.rate, 1, dtype="float32")

    # ------------------------------------------------------------------------------- use

    def feed(self, samples: NDArray[Any]) -> list[Transcript]:
        """Push samples, recognise what is ready, and give the transcripts that are new.

        Samples are mono, any number of them: int16, int32, or floating point of full scale ±1.
        Partial transcripts come when the text has changed; a final one ends its utterance.
        """
        self.push(samples)
        return self.recogniser.advance([self])[0]

    def finish(self) -> list[Transcript]:
        """The end of the audio: the last transcripts."""
        self.end()
        return self.recogniser.advance([self])[0]

    def close(self) -> None:
        """Free the memory of the session; it can be used no more."""
        self.closed = True
        self._blocks, self.buffered = [], 0
        self._resampler = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ----------------------------------------------------------------------- for recognisers

    def push(self, samples: NDArray[Any]) -> None:
        """Buffer samples without recognising them."""
        self._check_open()
        mono = _mono(samples)
        if len(mono):
            self._pushed += len(mono)
            self._keep(mono)

    def end(self) -> None:
        """Announce the end of the audio without recognising the rest of it."""
        self._check_open()
        self.ended = True
        if self._resampler is not None:
            self._keep(np.empty(0, np.float32), last=True)

    def take(self) -> Wave:
        """All buffered samples, 16-bit integers at the model's rate; the buffer is then empty."""
        blocks, self._blocks, self.buffered = self._blocks, [], 0
        return blocks[0] if len(blocks) == 1 else np.concatenate([np.empty(0, np.int16), *blocks])

    @property
    def seconds(self) -> float:
        """How much audio was pushed."""
        return self._pushed / self.rate

    @property
    def buffered_seconds(self) -> float:
        """How much audio waits to be recognised."""
        return self.buffered / self.recogniser.rate

    @property
    def ready(self) -> bool:
        """Whether `step` of the recogniser would compute something for this session."""
        return self.recogniser.is_ready(self)

    def _check_open(self) -> None:
        if self.closed or self.ended:
            what = "closed" if self.closed else "finished"
            raise ModelError(f"the live session is {what}; begin another for more audio")

    def _keep(self, mono: NDArray[np.float32], last: bool = False) -> None:
        if self._resampler is not None:
            mono = self._resampler.resample_chunk(mono, last=last)
        if len(mono):
            self._blocks.append(to_int16(mono))
            self.buffered += len(mono)


class LiveRecogniser:
    """A model with its settings, which advances any number of sessions."""

    rate: int
    """The model's sample rate."""

    def session(self, rate: int | None = None, tags: Sequence[str] = ()) -> LiveSession:
        """A new session for samples at `rate`, by default the model's own. Raises ModelError."""
        raise NotImplementedError

    def is_ready(self, session: LiveSession) -> bool:
        """Whether `step` would compute something for a session."""
        raise NotImplementedError

    def step(self, sessions: Sequence[LiveSession]) -> list[list[Transcript]]:
        """At most one piece of audio of each session that has one, all in one batch; the new
        transcripts of each session. So none waits while another has hours buffered."""
        raise NotImplementedError

    def advance(self, sessions: Sequence[LiveSession]) -> list[list[Transcript]]:
        """All that is buffered in these sessions; the new transcripts of each."""
        found: list[list[Transcript]] = [[] for _ in sessions]
        while True:
            places = [place for place, session in enumerate(sessions) if self.is_ready(session)]
            if not places:
                return found
            new = self.step([sessions[place] for place in places])
            for place, transcripts in zip(places, new, strict=True):
                found[place] += transcripts


def _mono(samples: NDArray[Any]) -> NDArray[np.float32]:
    """Samples of full scale ±1. Raises DataError."""
    samples = np.asarray(samples)
    if samples.ndim != 1:
        raise DataError(f"live audio has the shape {list(samples.shape)}; give mono samples, [n]")
    if samples.dtype in (np.int16, np.int32):
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    if not np.issubdtype(samples.dtype, np.floating):
        raise DataError(
            f"live audio has samples of type {samples.dtype}; give floating point numbers of full "
            f"scale ±1, int16 or int32"
        )
    if not np.isfinite(samples).all():
        raise DataError("live audio holds samples that are NaN or infinite")
    return samples.astype(np.float32)
