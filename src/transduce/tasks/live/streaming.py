"""Live recognition with a streaming encoder: chunk by chunk, each computed once.

Every chunk of audio is encoded with the caches of the chunks before it, search goes on over its
states, and a partial transcript is given where the text has changed. With CTC that is prefix beam
search; at the end of an utterance the decoder rescores the best hypotheses, and CTC gives the times
of the words. Transducers are in transducer.py. The next utterance begins anew, so that positions
count from its beginning, as in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from transduce.data.audio.corpus import Wave
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.models.speech import SpeechEncoderDecoder, SpeechNetwork
from transduce.models.streaming import EncoderStreams
from transduce.nn.ctc.prefix_beam import Prefixes, PrefixSearch
from transduce.nn.transducer.search import Hypotheses
from transduce.tasks.audio_input import AudioInput
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.live.session import LiveRecogniser, LiveSession, Transcript
from transduce.tasks.live.settings import StreamingSettings, chunk_states
from transduce.tasks.live.utterance import Finals, Utterance, added_scores, best_hypotheses
from transduce.tasks.model import inference

SILENCE = 0.8  # probability of the blank from which on a state counts as silence, as in WeNet
OVERLAP = 0.4  # seconds of silence that the next utterance may begin with
CANDIDATES = 16  # most probable labels of a frame that may follow a hypothesis
SLACK = 2**16  # used samples that are kept before they are dropped


class StreamingSession(LiveSession):
    """A session with its slot of the caches and its utterance."""

    def __init__(
        self, recogniser: StreamingRecogniser[Any], rate: int, tags: Sequence[str]
    ) -> None:
        super().__init__(recogniser, rate, tags)
        self.samples: Wave = np.empty(0, np.int16)
        self.used = 0
        """Samples of them before the next chunk."""
        self.dropped = 0
        """Samples of the session before them."""
        self.slot = recogniser.open()
        self.utterance = Utterance(0, 0)
        self._recogniser = recogniser

    @property
    def waiting(self) -> int:
        """Samples that were not recognised yet."""
        return len(self.samples) - self.used + self.buffered

    @property
    def buffered_seconds(self) -> float:
        return self.waiting / self.recogniser.rate

    def next_samples(self, maximum: int) -> Wave:
        """The samples of the next chunk."""
        if self.buffered:
            self.samples = np.concatenate((self.samples, self.take()))
        return self.samples[self.used : self.used + maximum]

    def move(self, samples: int, kept: int) -> None:
        """Go on by so many samples; as many as `kept` of those before are still needed."""
        self.used += samples
        if self.used > kept + SLACK:
            self.samples = self.samples[self.used - kept :].copy()
            self.dropped += self.used - kept
            self.used = kept

    @property
    def at(self) -> int:
        """The sample of the session at which the next chunk begins."""
        return self.dropped + self.used

    def close(self) -> None:
        if not self.closed:
            self._recogniser.release(self)
        super().close()
        self.samples = np.empty(0, np.int16)
        self.used = 0
        self.utterance = Utterance(self.utterance.number, 0)


@dataclass
class _Chunk:
    """What was found of one session in a step."""

    session: StreamingSession
    ends: bool = False
    transcripts: list[Transcript] = field(default_factory=list)


Beams = TypeVar("Beams", Prefixes, Hypotheses)


class StreamingRecogniser(LiveRecogniser, Generic[Beams]):
    """A model with a streaming encoder; subclasses say how its states are searched."""

    def __init__(self, recordings: AudioInput, settings: StreamingSettings) -> None:
        """recordings: of the model."""
        model, network = recordings.model, recordings.model.network
        assert isinstance(network, SpeechNetwork)
        self.recordings = recordings
        state_ms = recordings.settings.state_ms
        states = chunk_states(settings.chunk_ms, state_ms)
        self.model, self.settings = model, settings
        self.rate = recordings.settings.sample_rate
        self.streams = EncoderStreams(network, states)
        self.added = added_scores(model, settings)
        self.state_seconds = state_ms / 1000
        self._first_second = network.front.seconds_of(0)
        longest = settings.endpointing.longest
        if self.streams.max_states is not None:
            longest = min(longest, (self.streams.max_states - states) * self.state_seconds)
        self.longest = longest
        self._beams: Beams | None = None
        """The hypotheses of each slot."""

    # ------------------------------------------------------------------------------- search

    def _start(self, count: int) -> Beams:
        """Hypotheses before the first state."""
        raise NotImplementedError

    def _search(self, beams: Beams, states_BTD: Tensor, counts_B: Tensor) -> tuple[Beams, Tensor]:
        """The hypotheses after more states, counts_B of each row, and ln p_BT of the blank."""
        raise NotImplementedError

    def _finals(self, utterances: Sequence[Utterance], beams: Beams) -> list[Transcript]:
        """The transcripts of utterances that are over."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------- sessions

    def session(self, rate: int | None = None, tags: Sequence[str] = ()) -> StreamingSession:
        rate = self.rate if rate is None else rate
        return StreamingSession(self, rate, self.recordings.model.tags_of(tags))

    def open(self) -> int:
        with self._inference():
            slot = self.streams.open()
            slots = len(self.streams.seen)
            if self._beams is None or len(self._beams.frames_B) < slots:
                grown = self._start(slots)
                if self._beams is not None:
                    every = torch.arange(len(self._beams.frames_B), device=self.model.device)
                    grown.put(every, self._beams)
                self._beams = grown
            self._restart([slot])
        return slot

    def release(self, session: StreamingSession) -> None:
        """Free what a session had."""
        self.streams.close(session.slot)
        if not self.streams.seen:
            self._beams = None

    def is_ready(self, session: LiveSession) -> bool:
        assert isinstance(session, StreamingSession)
        if session.closed or session.done:
            return False
        return session.ended or session.waiting >= self.streams.shape.samples

    # ------------------------------------------------------------------------------- steps

    def step(self, sessions: Sequence[LiveSession]) -> list[list[Transcript]]:
        chunks = []
        for session in sessions:
            assert isinstance(session, StreamingSession)
            chunks.append(_Chunk(session))
        ready = [chunk for chunk in chunks if self.is_ready(chunk.session)]
        shape = self.streams.shape
        with self._inference():
            with_audio = [one for one in ready if shape.states_in(one.session.waiting)]
            if with_audio:
                self._recognise(with_audio)
            for chunk in ready:
                session = chunk.session
                if session.ended and not shape.states_in(session.waiting):
                    chunk.ends = session.done = True
            self._finish([chunk for chunk in ready if chunk.ends])
        return [chunk.transcripts for chunk in chunks]

    def _recognise(self, chunks: list[_Chunk]) -> None:
        """The next chunk of each session: encode, search, give partial transcripts."""
        shape = self.streams.shape
        sessions = [chunk.session for chunk in chunks]
        pieces = [session.next_samples(shape.samples) for session in sessions]
        samples_BW = np.zeros((len(pieces), max(map(len, pieces))), np.int16)
        for place, piece in enumerate(pieces):
            samples_BW[place, : len(piece)] = piece
        lengths_B = torch.tensor([len(piece) for piece in pieces])
        slots = [session.slot for session in sessions]
        samples = torch.from_numpy(samples_BW).to(self.model.device)
        states_BTD, counts = self.streams.encode(slots, samples, lengths_B, self._tags(sessions))
        rows_B = torch.tensor(slots, device=states_BTD.device)
        assert self._beams is not None
        beams, blank_BT = self._search(self._beams.select(rows_B), states_BTD, torch.tensor(counts))
        self._beams.put(rows_B, beams)
        loud = _last_loud(blank_BT, counts)
        best = best_hypotheses(beams)
        kept = shape.step * round(OVERLAP / self.state_seconds)
        for row, (chunk, count) in enumerate(zip(chunks, counts, strict=True)):
            session, utterance = chunk.session, chunk.session.utterance
            utterance.add(states_BTD[row, :count], count - 1 - loud[row])
            session.move(count * shape.step, kept)
            partial = utterance.partial(best[row], self.model.target_tokens, self._seconds)
            if partial is not None:
                chunk.transcripts.append(partial)
            length = (utterance.states + shape.states) * self.state_seconds
            chunk.ends = length > self.longest + 1e-9 or self.settings.endpointing.ends(
                utterance.text,
                utterance.silence * self.state_seconds,
                utterance.states * self.state_seconds,
            )

    def _finish(self, chunks: list[_Chunk]) -> None:
        """Final transcripts of utterances that are over; their sessions begin others."""
        if not chunks:
            return
        spoken = [chunk for chunk in chunks if chunk.session.utterance.shown is not None]
        if spoken:
            assert self._beams is not None
            slots = [chunk.session.slot for chunk in spoken]
            beams = self._beams.select(torch.tensor(slots, device=self.model.device))
            found = self._finals([chunk.session.utterance for chunk in spoken], beams)
            for chunk, final in zip(spoken, found, strict=True):
                chunk.transcripts.append(final)
        for chunk in chunks:
            session, utterance = chunk.session, chunk.session.utterance
            # In the silence at its end, so that a word that has just begun is heard whole.
            overlap = min(utterance.silence // 2, round(OVERLAP / self.state_seconds))
            session.used -= overlap * self.streams.shape.step
            number = utterance.number + (utterance.shown is not None)
            session.utterance = Utterance(number, session.at)
        self._restart([chunk.session.slot for chunk in chunks])

    # ------------------------------------------------------------------------- implementation

    def _inference(self) -> Any:
        language = self.settings.language_model
        return inference(self.model, *([language] if isinstance(language, LanguageModel) else []))

    def _restart(self, slots: list[int]) -> None:
        assert self._beams is not None
        for slot in slots:
            self.streams.restart(slot)
        rows_B = torch.tensor(slots, device=self.model.device)
        self._beams.put(rows_B, self._start(len(slots)))

    def _tags(self, sessions: Sequence[StreamingSession]) -> Tensor | None:
        known = list(self.model.source_tokens.tags)
        if not known:
            return None
        rows = [[float(tag in session.tags) for tag in known] for session in sessions]
        return torch.tensor(rows, device=self.model.device)

    def _seconds(self, utterance: Utterance, state: float) -> float:
        """The time of a state of an utterance in its session."""
        return utterance.start / self.rate + self._first_second + state * self.state_seconds


class CtcRecogniser(StreamingRecogniser[Prefixes]):
    """CTC over the output tokens, whose best hypotheses the decoder rescores at the end."""

    def __init__(self, recordings: AudioInput, settings: StreamingSettings) -> None:
        super().__init__(recordings, settings)
        network = self.model.network
        assert isinstance(network, SpeechEncoderDecoder)
        self.network = network
        self.search = PrefixSearch(
            settings.beam,
            PAD,
            candidates=CANDIDATES,
            skip=settings.skip_blank if settings.skip_blank < 1 else None,
            banned=(BEGIN, END),
        )
        tokens = self.model.target_tokens
        self.finals = Finals(network, tokens, settings.ctc_weight)

    def _start(self, count: int) -> Prefixes:
        return self.search.start(count, self.added, self.model.device)

    def _search(
        self, beams: Prefixes, states_BTD: Tensor, counts_B: Tensor
    ) -> tuple[Prefixes, Tensor]:
        log_probs_BTV = self.network.ctc_log_probs_of(states_BTD)
        found = self.search.advance(beams, log_probs_BTV, counts_B, self.added)
        return found, log_probs_BTV[..., PAD]

    def _finals(self, utterances: Sequence[Utterance], beams: Prefixes) -> list[Transcript]:
        return self.finals.of(utterances, beams, self._seconds)


def _last_loud(blank_BT: Tensor, counts: list[int]) -> list[int]:
    """The last state of each row that is not silence; −1 where all are."""
    place_T = torch.arange(blank_BT.shape[1], device=blank_BT.device)
    real_BT = place_T < torch.tensor(counts, device=blank_BT.device)[:, None]
    loud_BT = (blank_BT.exp() <= SILENCE) & real_BT
    found: list[int] = torch.where(loud_BT, place_T, -1).amax(dim=1).tolist()
    return found
