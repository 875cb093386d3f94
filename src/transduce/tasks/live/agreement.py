"""Live recognition with any speech model: the utterance so far is recognised again and again, and
what two successive hypotheses agree on is stable.

This is LocalAgreement-2 of Liu et al. 2020 (https://arxiv.org/abs/2005.11185), as Macháček et al.
2023 (https://arxiv.org/abs/2307.14743) use it for Whisper. An utterance ends with silence or at its
greatest length, so cost and memory stay bounded; its final transcript is the model's output for
all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from transduce.data.audio.silence import MIN_MARGIN
from transduce.data.text.unicode import UNSPACED
from transduce.decoding.output import Output
from transduce.errors import ModelError
from transduce.tasks.audio_input import AudioInput, AudioSegment
from transduce.tasks.live.segmenter import END, PARTIAL, PAUSE, Piece, Segmenter
from transduce.tasks.live.session import LiveRecogniser, LiveSession, Transcript
from transduce.tasks.live.settings import Endpointing

EVERY = 0.5  # seconds of new audio after which an utterance is recognised again,
EVERY_WINDOW = 1.0  # and where the encoder reads 30 s however short the audio
SHORTEST = 0.1  # seconds of audio that are worth a look


class Model(Protocol):
    """What is needed of a speech model."""

    @property
    def recordings(self) -> AudioInput: ...

    def run(self, sources: Sequence[Any], **settings: Any) -> list[Output]: ...


class Agreement:
    """The text of an utterance; its stable beginning is what two hypotheses agreed on."""

    def __init__(self) -> None:
        self.text = ""
        self.stable = 0

    def add(self, hypothesis: str) -> None:
        """A new hypothesis. Where it contradicts the stable text, that is kept, and what comes
        after as many words is taken from the hypothesis."""
        hypothesis = " ".join(hypothesis.split())
        fixed = self.text[: self.stable]
        if not hypothesis.startswith(fixed):
            hypothesis = fixed + _after(hypothesis, fixed)
        self.stable = max(self.stable, _agreed(self.text, hypothesis))
        self.text = hypothesis


def _after(hypothesis: str, fixed: str) -> str:
    """What a hypothesis says after as many words as are fixed, with the space before it."""
    if UNSPACED.search(fixed):
        return hypothesis[len(fixed) :]
    rest = hypothesis.split()[len(fixed.split()) :]
    return "".join(f" {word}" for word in rest)


def _agreed(one: str, two: str) -> int:
    """The length of the common beginning of two texts, in whole words."""
    maximum = min(len(one), len(two))
    length = next((n for n in range(maximum) if one[n] != two[n]), maximum)
    while length and not (_is_boundary(one, length) and _is_boundary(two, length)):
        length -= 1
    return len(one[:length].rstrip())


def _is_boundary(text: str, place: int) -> bool:
    return text[place : place + 1] in ("", " ") or bool(UNSPACED.match(text[place - 1]))


class AgreementSession(LiveSession):
    """One speaker."""

    def __init__(self, recogniser: AgreementRecogniser, rate: int, tags: Sequence[str]) -> None:
        super().__init__(recogniser, rate, tags)
        self.segmenter = Segmenter(
            recogniser.rate,
            recogniser.rules,
            recogniser.every,
            recogniser.longest,
            recogniser.margin,
        )
        self.utterance = 0
        self._agreement = Agreement()
        self._shown = ("", 0)
        """The text of the last transcript, and how much of it is stable."""
        self._pause: tuple[Piece, Output] | None = None
        """What was recognised at a pause that may be the end of the utterance."""
        self._asked: Piece | None = None
        """What is being recognised; after a failure it is recognised again."""
        self._found: list[Transcript] = []

    @property
    def buffered_seconds(self) -> float:
        return super().buffered_seconds + self.segmenter.waiting_seconds

    @property
    def has_work(self) -> bool:
        if self.closed or self.done:
            return bool(self._found) and not self.closed  # of a step that failed for another
        waiting = self._asked is not None or self.segmenter.has_more or self.ended
        return waiting or super().buffered_seconds >= SHORTEST

    def next(self) -> Piece | None:
        """The next piece to recognise; None: there is nothing to recognise yet."""
        if self._asked is not None or self.done:
            return self._asked
        self.segmenter.add(self.take(), self.ended)
        while (piece := self.segmenter.next(self.ended)) is not None:
            if self._pause is None or piece.kind != END or piece.end != self._pause[0].end:
                self._asked = piece
                return piece
            self._found += self._final(*self._pause)  # nothing was said since
        self.done = self.ended
        return None

    def answer(self, output: Output) -> None:
        """The output for the piece that `next` gave."""
        assert self._asked is not None
        self._found += self._answer(self._asked, output)
        self._asked = None

    def new_transcripts(self) -> list[Transcript]:
        """Each is given once."""
        found, self._found = self._found, []
        return found

    def _answer(self, piece: Piece, output: Output) -> list[Transcript]:
        output = replace(output, text=output.text.strip())
        self._pause = (piece, output) if piece.kind == PAUSE else None
        if piece.kind == END:
            return self._final(piece, output)
        self._agreement.add(output.text)
        self.segmenter.text = output.text
        if piece.kind == PAUSE and self.segmenter.ends_a_sentence:
            self.segmenter.end_at_pause()
            return self._final(piece, output)
        agreed = self._agreement
        if (agreed.text, agreed.stable) == self._shown:
            return []
        self._shown = (agreed.text, agreed.stable)
        return [
            Transcript(
                agreed.text, False, self.utterance, piece.start, piece.end, stable=agreed.stable
            )
        ]

    def _final(self, piece: Piece, output: Output) -> list[Transcript]:
        (shown, _), self._shown = self._shown, ("", 0)
        self._agreement, self._pause = Agreement(), None
        if not output.text and not shown:  # a noise
            return []
        words = [
            replace(word, start=piece.start + word.start, end=piece.start + word.end)
            for word in output.words
        ]
        self.utterance += 1
        return [
            Transcript(
                output.text,
                True,
                self.utterance - 1,
                piece.start,
                piece.end,
                words,
                len(output.text),
                output.confidence,
            )
        ]


class AgreementRecogniser(LiveRecogniser):
    """A speech model whose `run` recognises the utterances of all sessions, in one batch."""

    def __init__(
        self,
        model: Model,
        *,
        every: float | None = None,
        margin: float = MIN_MARGIN,
        **settings: Any,
    ) -> None:
        """every: seconds of new audio after which an utterance is recognised again. margin:
        decibels that speech is above noise. settings: of `model.run`, and when an utterance is
        over (endpoint.py)."""
        prompted = model.recordings.settings.prompt is not None
        usual = EVERY_WINDOW if prompted else EVERY
        self.partial = {"fallback": False} if prompted else {}
        """Settings of what is soon recognised again."""
        self.every = usual if every is None else every
        if not 0 < self.every < 60 or not 0 < margin < 60:
            raise ModelError(
                f"every is {self.every!r} s and margin {margin!r} dB; both must be between 0 and 60"
            )
        self.model, self.margin = model, margin
        self.rate = model.recordings.settings.sample_rate
        self.rules = Endpointing.take(settings)
        self.longest = min(self.rules.longest, model.recordings.longest)
        self.settings = settings

    def session(self, rate: int | None = None, tags: Sequence[str] = ()) -> AgreementSession:
        return AgreementSession(self, self.rate if rate is None else rate, tags)

    def is_ready(self, session: LiveSession) -> bool:
        assert isinstance(session, AgreementSession)
        return session.has_work

    def step(self, sessions: Sequence[LiveSession]) -> list[list[Transcript]]:
        own = [session for session in sessions if isinstance(session, AgreementSession)]
        groups: dict[tuple[tuple[str, ...], bool], list[tuple[AgreementSession, Piece]]] = {}
        for session in own:
            piece = session.next()
            if piece is not None:  # word times cost a further pass: only where they may be final
                key = (session.tags, piece.kind != PARTIAL)
                groups.setdefault(key, []).append((session, piece))
        for (tags, final), asked in groups.items():
            sources = [AudioSegment.of("live audio", piece.wave) for _, piece in asked]
            settings = {**self.settings, **({} if final else self.partial)}
            outputs = self.model.run(sources, tags=tags, times=final, **settings)
            for (session, _), output in zip(asked, outputs, strict=True):
                session.answer(output)
        return [session.new_transcripts() for session in own]
