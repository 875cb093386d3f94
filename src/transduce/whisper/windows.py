"""A recording window by window: 30 s are decoded, timestamps say where the next window begins."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.audio.corpus import Wave
from transduce.data.audio.read import parse_place, place_of
from transduce.data.audio.speech_activity import PAUSE, Span
from transduce.data.tokens.tokenizer import END, Tokens
from transduce.data.tokens.whisper_prompt import PromptTokens
from transduce.decoding.constraints.read import of_sources
from transduce.decoding.output import Output, TimedWord
from transduce.decoding.speech.confidence import geometric_mean
from transduce.models.call_context import Call
from transduce.models.speech import SpeechEncoderDecoder
from transduce.recipe.audio import Prompt
from transduce.tasks.audio_input import AudioInput, AudioSegment, SegmentedRecording
from transduce.tasks.observer import PartObserver, RunObserver, TokenStep
from transduce.whisper.clock import Clock, within
from transduce.whisper.encoder_cache import EncoderCache
from transduce.whisper.steps import DetectedLanguage
from transduce.whisper.word_times import TokenTimes, token_times, word_spans, word_states

AT_ONCE = {"cpu": 8}  # about so many windows are decoded together; on other devices MANY:
MANY = 256  # more than a search has slots, so that a window that has ended makes way for another
NO_SPEECH = 0.6  # probability of <|nospeech|> above which a window is left out,
UNLIKELY = -1.0  # if the mean log-probability of its tokens is below this
REPEATING = 2.4  # compression ratio of a text above which it repeats itself
TEMPERATURES = (0.2, 0.4, 0.6, 0.8, 1.0)
DRAWN = 5  # samples at each temperature, of which the likeliest is taken
PREVIOUS = 223  # tokens of the text before that a prompt holds
SHORTEST = 0.1  # seconds that are worth a window of their own
SEGMENT_PAUSE = 1.0  # seconds between two words at which a segment is cut


@dataclass(frozen=True)
class DecodingOptions:
    """What is asked of a window."""

    language: str | None
    """None: to be detected."""
    task: str
    timestamps: bool


@dataclass
class Progress:
    """A recording, and how far it is transcribed."""

    recording: SegmentedRecording
    wave: Wave
    """What is decoded."""
    clock: Clock
    """When its samples were, in the file."""
    number: int
    """Of its source, as it was given to `run`."""
    language: str | None
    speech: Sequence[Span] = ()
    """When somebody speaks, in seconds of the file; empty: not known, or nobody does."""
    margin: float = 0.0
    """Seconds at its end in which nobody speaks."""
    before: list[int] = field(default_factory=list)
    """The text so far, for the next prompt."""
    done: int = 0
    """Samples."""
    language_probability: float | None = None


class Model(Protocol):
    """What is needed of a WhisperModel here."""

    network: SpeechEncoderDecoder
    target_tokens: Tokens

    @property
    def recordings(self) -> AudioInput: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def prompt_tokens(self) -> PromptTokens: ...

    @property
    def prompt_settings(self) -> Prompt: ...

    def prompt_of(
        self, options: DecodingOptions, previous: Sequence[int] = ()
    ) -> tuple[int, ...]: ...

    def encoder_cache(self) -> EncoderCache: ...

    def listen(
        self, waves: Sequence[Wave], encoder: EncoderCache, *, languages: bool = True
    ) -> list[DetectedLanguage]: ...

    def decode_windows(
        self, segments: Sequence[str], call: Call, encoder: EncoderCache | None = None, **asked: Any
    ) -> list[Output]: ...


class Windows:
    """Transcribes recordings in rounds: one window of each, several at a time."""

    def __init__(
        self,
        model: Model,
        options: DecodingOptions,
        times: bool,
        previous_text: bool,
        fallback: bool,
        observer: RunObserver | None,
        asked: Mapping[str, Any],
    ) -> None:
        self.model, self.options, self.times = model, options, times
        self.previous_text = previous_text
        self.fallback = fallback and not asked.get("sample", False)  # it has its own temperature
        self.observer, self.asked = observer, dict(asked)
        self.rate = model.recordings.settings.sample_rate
        self.size = round(model.recordings.longest * self.rate)

    def run(self, recordings: Sequence[Progress]) -> None:
        """Transcribe them to their ends; outputs are added to each recording."""
        waiting = list(recordings)
        at_once = AT_ONCE.get(self.model.device.type, MANY)
        while waiting:
            waiting = [window for one in waiting for window in self._known_windows(one)]
            parts = max(1, round(len(waiting) / at_once))  # of the same size: none of a few alone
            size = -(-len(waiting) // parts)
            for start in range(0, len(waiting), size):
                self._round(waiting[start : start + size], self.model.encoder_cache())
            gone = set() if self.observer is None else set(self.observer.cancelled())
            waiting = [one for one in waiting if self._has_more(one) and one.number not in gone]

    def _has_more(self, one: Progress) -> bool:
        return len(one.wave) - one.done > (one.margin + SHORTEST) * self.rate

    def _known_windows(self, one: Progress) -> list[Progress]:
        """The windows of which it is known where they begin: without timestamps all, if the first
        need not tell the language, or the text before each."""
        detects = one.language is None and self.model.prompt_tokens.multilingual
        if self.options.timestamps or self.previous_text or detects:
            return [one]
        starts = range(one.done, len(one.wave), self.size)
        apart = [replace(one, wave=one.wave[: start + self.size], done=start) for start in starts]
        return [window for window in apart if window is apart[0] or self._has_more(window)]

    def _window(self, one: Progress) -> Wave:
        return one.wave[one.done : one.done + self.size]

    def _named(self, one: Progress) -> AudioSegment:
        recording, wave = one.recording, self._window(one)
        if recording.whole:
            return AudioSegment.of(recording.source, wave)
        start, end = one.clock.seconds(np.array([one.done, one.done + len(wave) - 1])).tolist()
        path = parse_place(recording.source)[0]
        return AudioSegment.of(place_of(path, start, end + 1 / self.rate), wave)

    def _round(self, some: Sequence[Progress], encoder: EncoderCache) -> None:
        """One window of each, which is encoded once."""
        detected: dict[int, DetectedLanguage] = {}
        unknown = [place for place, one in enumerate(some) if one.language is None]
        if self.model.prompt_tokens.multilingual:
            self._listen(some, unknown, detected, encoder, languages=True)
            for place in unknown:
                one, found = some[place], detected[place]
                one.language = found.language
                one.language_probability = found.languages[found.language]
        for call, places in self._same_prompt(some):
            numbers = [some[place].number for place in places]
            segments = [self._named(some[place]) for place in places]
            asked = dict(self.asked)
            if self.observer is not None:
                hidden = {one.number for one in some if not self._shows_tokens(one)}
                asked["observer"] = PartObserver(self.observer, numbers, hidden=hidden)
            outputs = self.model.decode_windows(segments, call, encoder, **asked)
            # Whether anything is said matters only where the output is unlikely.
            unlikely = [
                place
                for place, output in zip(places, outputs, strict=True)
                if _mean(output) < UNLIKELY and place not in detected
            ]
            self._listen(some, unlikely, detected, encoder, languages=False)
            for number, (place, output) in enumerate(zip(places, outputs, strict=True)):
                one, heard = some[place], detected.get(place)
                silent = heard is not None and heard.no_speech > NO_SPEECH
                if self.fallback and not (silent and _mean(output) < UNLIKELY):
                    own = of_sources(self.asked, [number], len(outputs))
                    output = self._again(segments[number], output, call, encoder, own)
                self._take(one, output, silent and _mean(output) < UNLIKELY, encoder)

    def _listen(
        self,
        some: Sequence[Progress],
        places: list[int],
        detected: dict[int, DetectedLanguage],
        encoder: EncoderCache,
        *,
        languages: bool,
    ) -> None:
        if places:
            waves = [self._window(some[place]) for place in places]
            found = self.model.listen(waves, encoder, languages=languages)
            detected.update(zip(places, found, strict=True))

    def _same_prompt(self, some: Sequence[Progress]) -> Iterator[tuple[Call, list[int]]]:
        """The windows that have the same language and the same text before."""
        found: dict[Call, list[int]] = {}
        for place, one in enumerate(some):
            call = Call(
                language=one.language,
                task=self.options.task,
                timestamps=self.options.timestamps,
                previous=tuple(one.before[-PREVIOUS:]),
            )
            found.setdefault(call, []).append(place)
        yield from found.items()

    def _again(
        self,
        segment: AudioSegment,
        output: Output,
        call: Call,
        encoder: EncoderCache,
        asked: Mapping[str, Any],
    ) -> Output:
        """The output of the lowest temperature that is neither repetitive nor unlikely; where there
        is none, the likeliest of those that do not repeat themselves, or of all.

        All that was asked for holds for samples too, but that a beam is not in groups. Minimum
        Bayes risk decoding has a number of samples of its own, and chooses among them.
        """
        nbest = asked.get("nbest", 1)
        maximum = nbest if asked.get("mbr") else max(DRAWN, nbest)
        drawn = {**asked, "sample": True, "groups": 1, "nbest": maximum}
        tried = [output]
        for temperature in TEMPERATURES:
            if not _repeats(tried[-1]) and _mean(tried[-1]) >= UNLIKELY:
                return tried[-1]
            drawn["temperature"] = temperature
            (output,) = self.model.decode_windows([segment], call, encoder, **drawn)
            shown = output.alternatives[:nbest] if nbest > 1 else []
            tried.append(replace(output, alternatives=shown))
        return max(tried, key=lambda one: (not _repeats(one), _mean(one)))

    # ------------------------------------------------------------------------ its output

    def _shows_tokens(self, one: Progress) -> bool:
        """Whether an observer sees tokens as they are chosen. Those of an output that may be
        decoded again, or is cut at its timestamps, are shown when they are certain."""
        return one.recording.whole and not self.fallback

    def _take(self, one: Progress, output: Output, silent: bool, encoder: EncoderCache) -> None:
        """Add the output of a window to its recording, and go on to the next window.

        silent: nothing is said there.
        """
        seconds = len(self._window(one)) / self.rate
        tokens = self.model.prompt_tokens
        found, done = split_at_times(output.ids, tokens, seconds)
        if not self.options.timestamps:
            ids = tokens.text(output.ids)
            found, done = ([Segment(0.0, seconds, ids)] if ids else []), seconds
        if silent:
            found, done = [], seconds
        shown = self._shown(one, output, found, done, encoder)
        if self.observer is not None and not self._shows_tokens(one) and shown.text:
            text = " " * any(before.text for before in one.recording.outputs) + shown.text
            if one.number in self.observer.watched:
                self.observer.token(one.number, TokenStep(text, text, output.log_probability))
        one.recording.outputs.append(shown)
        if self.previous_text:
            one.before += shown.ids
        one.done += round(max(done, SHORTEST) * self.rate)

    def _shown(
        self,
        one: Progress,
        output: Output,
        found: Sequence[Segment],
        done: float,
        encoder: EncoderCache,
    ) -> Output:
        """done: how many seconds of the window are."""
        model = self.model
        ids = [number for segment in found for number in segment.ids]
        confidence = geometric_mean(output.log_probability, len(output.ids) + 1)
        if not output.ids and not output.text and output.score == float("-inf"):
            confidence = 0.0
        texts = [model.target_tokens.decode(segment.ids).strip() for segment in found]
        segments = [
            TimedWord(text, *self._speech_within(one, segment), confidence)
            for text, segment in zip(texts, found, strict=True)
        ]
        attention = output.attention
        if attention is not None:  # rows of what is shown, and END
            places = [
                n for n, one_id in enumerate(output.ids) if model.prompt_tokens.text([one_id])
            ]
            attention = attention[:, :, [*places[: len(ids)], attention.shape[2] - 1]]
        shown = replace(
            output,
            attention=attention,
            text=texts[0] if len(texts) == 1 else model.target_tokens.decode(ids).strip(),
            tokens=model.target_tokens.pieces([*ids, END]),
            ids=ids,
            segments=segments,
            confidence=confidence,
            language=one.language or "",
            language_probability=one.language_probability,
        )
        if not self.times or not ids:
            return shown
        timed = self._times(one, ids, done, encoder)
        probabilities = [geometric_mean(value, 1) for value in timed.log_probabilities]
        words = self._words(one, ids, timed)
        starts = np.cumsum([0, *(len(segment.ids) for segment in found)]).tolist()
        return replace(
            shown,
            words=[word for _, word in words],
            segments=list(self._segments(ids, words, starts, confidence)),
            probabilities=probabilities,
        )

    def _segments(
        self,
        ids: list[int],
        words: Sequence[tuple[int, TimedWord]],
        starts: Sequence[int],
        confidence: float,
    ) -> Iterator[TimedWord]:
        """Segments from their first word to their last, cut where nobody speaks for a while.

        words: each with its first token. starts: the first tokens of segments.
        """
        borders = set(starts)
        begin = 0
        for number in range(1, len(words) + 1):
            before = words[number - 1][1]
            if number < len(words):
                token, word = words[number]
                if token not in borders and word.start - before.end < SEGMENT_PAUSE:
                    continue
            token = words[number][0] if number < len(words) else len(ids)
            text = self.model.target_tokens.decode(ids[words[begin][0] : token]).strip()
            yield TimedWord(text, words[begin][1].start, before.end, confidence)
            begin = number

    def _speech_within(self, one: Progress, segment: Segment) -> Span:
        """When somebody speaks between two timestamps, in seconds of the file; if nobody is known
        to, all of it."""
        samples = [one.done + round(moment * self.rate) for moment in (segment.start, segment.end)]
        start, end = one.clock.span(*samples)
        within = [span for span in one.speech if span.end > start and span.start < end]
        if not within:
            return Span(start, end)
        return Span(max(start, within[0].start), min(end, within[-1].end))

    def _times(
        self, one: Progress, ids: list[int], done: float, encoder: EncoderCache
    ) -> TokenTimes:
        """When tokens are said; the text is of the part that is done."""
        model = self.model
        memory = encoder.of_waves([self._window(one)])
        options = replace(self.options, language=one.language, timestamps=False)
        states = np.arange(max(1, math.ceil(done * STATES_A_SECOND - 1e-6)))
        spoken = states[within(one.clock.seconds(self._samples(one, states)), one.speech)]
        heads = model.prompt_settings.alignment_heads
        own = spoken if len(spoken) else states
        return token_times(model.network, memory, own, model.prompt_of(options), ids, heads)

    def _samples(self, one: Progress, states: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples in the middle of encoder states of the window."""
        size = self.rate // STATES_A_SECOND
        return np.minimum(one.done + states * size + size // 2, len(one.wave) - 1)

    def _words(
        self, one: Progress, ids: list[int], timed: TokenTimes
    ) -> list[tuple[int, TimedWord]]:
        """Each word, with its first token."""
        tokens = self.model.target_tokens
        letters = [any(sign.isalnum() for sign in piece) for piece in tokens.pieces(ids)]
        found: list[tuple[int, TimedWord]] = []
        size, pause, reached = self.rate // STATES_A_SECOND, round(PAUSE * STATES_A_SECOND), 0.0
        for start, end in word_spans(tokens, ids, one.language):
            after = max((n + 1 for n in range(start, end) if letters[n]), default=end)
            unsaid = timed.states[after : end + (end == len(ids))]
            first, last = word_states(
                np.concatenate(timed.states[start:after]), np.concatenate([NONE, *unsaid]), pause
            )
            samples = [min(one.done + state * size, len(one.wave)) for state in (first, last)]
            begins, ends = one.clock.span(*samples)
            begins = max(begins, reached)  # two words may share a state
            reached = max(begins, ends)
            sure = geometric_mean(sum(timed.log_probabilities[start:end]), end - start)
            word = TimedWord(tokens.decode(ids[start:end]).strip(), begins, reached, sure)
            found.append((start, word))
        return found


NONE = np.empty(0, np.int64)
STATES_A_SECOND = 50


def _mean(output: Output) -> float:
    """The mean log-probability of its tokens."""
    return output.log_probability / (len(output.ids) + 1)


def _repeats(output: Output) -> bool:
    text = output.text.encode()
    return len(text) / max(1, len(zlib.compress(text))) > REPEATING


class Segment(NamedTuple):
    """Text tokens between two timestamps; seconds from the start of the window."""

    start: float
    end: float
    ids: list[int]


class Window(NamedTuple):
    """What was found in a window, and how many seconds of it are done."""

    segments: list[Segment]
    done: float


def split_at_times(ids: Sequence[int], tokens: PromptTokens, seconds: float) -> Window:
    """Cut an output at its timestamps. seconds: the length of the window.

    A segment is closed by two timestamps in a row, its end and the next one's start. If an output
    ends in such a pair, or within a segment after one, the next window begins where the last closed
    segment ends; otherwise the window is done (Radford et al. 2022, section 3.8).
    """
    places = [
        place
        for place in range(1, len(ids))
        if tokens.is_time(ids[place - 1]) and tokens.is_time(ids[place])
    ]
    single = len(ids) >= 2 and tokens.is_time(ids[-1]) and not tokens.is_time(ids[-2])
    if not places:
        times = [number for number in ids if tokens.is_time(number)]
        start = tokens.seconds(times[0]) if times else 0.0
        end = seconds
        if times and times[-1] != tokens.first_timestamp and len(times) > 1:
            end = min(tokens.seconds(times[-1]), seconds)
        text = tokens.text(ids)
        return Window([Segment(min(start, end), end, text)] if text else [], seconds)
    cuts = [*places, len(ids)] if single else places
    segments, before = [], 0
    for cut in cuts:
        part = ids[before:cut]
        before = cut
        text = tokens.text(part)
        start, end = tokens.seconds(part[0]), tokens.seconds(part[-1])
        if text and end > start:
            segments.append(Segment(min(start, seconds), min(end, seconds), text))
    if single:
        return Window(segments, seconds)
    done = tokens.seconds(ids[cuts[-1] - 1])
    return Window(segments, min(done, seconds) if done > 0 else seconds)
