"""Whisper: transcribe or translate audio of many languages and of any length.

Outputs begin with a prompt, and rules say which tokens may come next. Each window of 30 s is
encoded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from transduce.data.audio.corpus import Wave
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import BEGIN, Tokens
from transduce.data.tokens.whisper_prompt import PromptTokens
from transduce.decoding.batch.decode import Bounds, FastSearch
from transduce.decoding.cuda.pool import AudioTask
from transduce.decoding.output import Output, Score
from transduce.decoding.search.stepper import ContextStepper, Stepper
from transduce.decoding.settings import Settings
from transduce.errors import DataError, ModelError
from transduce.models import EncoderDecoder
from transduce.models.build import Vocabulary, build_audio
from transduce.models.call_context import NO_CONTEXT, Call, CallContext
from transduce.models.encoder_output import EncoderOutput
from transduce.models.speech import SpeechEncoderDecoder
from transduce.recipe import Recipe
from transduce.recipe.audio import Prompt
from transduce.tasks.audio_input import AudioInput, AudioSource, SegmentedRecording
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.join_transcripts import join_segments
from transduce.tasks.model import check_sources, inference
from transduce.tasks.observer import RunObserver
from transduce.tasks.speech import SpeechModel
from transduce.whisper.clock import MARGIN, Clock, Part, find_speech, keep_speech
from transduce.whisper.encoder_cache import EncoderCache
from transduce.whisper.steps import (
    DetectedLanguage,
    Encode,
    PromptedSteps,
    RecordedRules,
    Rules,
    listen,
)
from transduce.whisper.windows import DecodingOptions, Progress, Windows

ENCODED_AT_ONCE = 64  # windows
NO_TAGS = "Whisper has no tags: give language and task instead"


@dataclass(frozen=True)
class PromptContext(CallContext):
    """The context of a call whose outputs come after a prompt."""

    prompt: tuple[int, ...] = ()
    """The tokens before an output, BEGIN among them."""
    encoder: EncoderCache | None = None
    """What was encoded already, of the same call; None: each search encodes for itself."""

    @property
    def before(self) -> list[int]:
        """The tokens between BEGIN and an output; what goes before BEGIN is not shown."""
        return list(self.prompt[self.prompt.index(BEGIN) + 1 :])


def _prompted(context: CallContext) -> PromptContext:
    assert isinstance(context, PromptContext)
    return context


class WhisperInput(AudioInput):
    """Recordings that are not cut beforehand."""

    def cut_at_silences(self, recording: SegmentedRecording, *_: Any) -> None:
        """Timestamps say where the next window begins."""
        recording.whole = False


class WhisperModel(SpeechModel):
    """A Whisper model, and any speech model whose outputs begin with a prompt (audio.prompt).

    model = transduce.load("whisper-base")
    model("talk.flac")                                 # the language is detected
    model.run(["talk.flac"], language="de", task="translate", times=True)
    """

    @property
    def recordings(self) -> WhisperInput:
        return WhisperInput(self)

    against_loops = "try no_repeat_ngram (--no-repeat-ngram), and leave fallback on"

    @classmethod
    def build(
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> SpeechEncoderDecoder:
        assert recipe.audio is not None
        assert recipe.audio.prompt is not None
        network = build_audio(
            recipe.model, recipe.audio, Vocabulary(len(source_tokens), len(target_tokens))
        )
        if "|notimestamps|" in target_tokens.tags:  # else only its parameters are counted
            known = PromptTokens.of(target_tokens)
            network.unscored = (known.first_special, known.first_timestamp)
        return network

    # ------------------------------------------------------------------------------- use

    def run(
        self,
        sources: Sequence[AudioSource],
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        times: bool = False,
        observer: RunObserver | None = None,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool | None = None,
        prompt: str = "",
        previous_text: bool = False,
        fallback: bool = True,
        vad: bool = False,
        **asked: Any,
    ) -> list[Output]:
        """One output per source, in order; sources and further keywords as in SpeechModel.run.

        language: such as "en"; None: the recipe's, or detected in the first 30 s. task:
        "transcribe", or "translate" to English. timestamps: predict them, which gives segments;
        recordings longer than 30 s need them. prompt: text that goes before, such as names to
        spell. previous_text: each window sees the text of the one before. fallback: outputs that
        repeat themselves or are unlikely are sampled again, at rising temperatures (not with
        `sample`, which has its own); an observer then sees the text of each window at its end. vad:
        voice activity detection; only speech is decoded, and times are those of the recording.
        """
        options = self._options(language, task, timestamps)
        recordings = self.recordings.split(sources, rate, tags)
        number_of = {id(recording): number for number, recording in enumerate(recordings)}
        sample_rate = self.recordings.settings.sample_rate
        for _, readable in self.recordings.read(recordings):
            progress = []
            for own, segments, entries in readable:
                for segment, (recording, start, _) in zip(segments, entries, strict=True):
                    wave, clock = segment.wave, Clock((Part(0, start),), sample_rate)
                    speech = find_speech(wave, start, sample_rate) if times or vad else []
                    if vad and not speech:
                        recording.remarks.append(f"{segment} contains no speech")
                        continue
                    if vad:
                        wave, clock = keep_speech(wave, start, sample_rate, speech)
                    progress.append(
                        Progress(
                            recording,
                            wave,
                            clock,
                            number_of[id(recording)],
                            self._language_of(own, options.language),
                            speech,
                            MARGIN if vad else 0.0,
                            self.target_tokens.encode(prompt) if prompt else [],
                        )
                    )
            again = fallback and not self.is_watched  # a lens looks at one search
            windows = Windows(self, options, times, previous_text, again, observer, asked)
            with inference(self):
                windows.run(sorted(progress, key=lambda one: one.number))
        return [self._joined(recording, times) for recording in recordings]

    def decode_windows(
        self, segments: Sequence[str], call: Call, encoder: EncoderCache | None = None, **asked: Any
    ) -> list[Output]:
        """The outputs of windows, of which one language, task and text before is known: search as
        any model's. encoder: has encoded some of them already."""
        return self._run(segments, call, replace(self.context_of(call), encoder=encoder), **asked)

    def score(
        self,
        sources: Sequence[AudioSource],
        targets: Sequence[str],
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        language: str | None = None,
        task: str | None = None,
        **asked: Any,
    ) -> list[Score]:
        """Score given targets, without timestamps: the log-probability of each of their tokens.

        Sources are as in `run`, of at most 30 s.
        """
        options = self._options(language, task, timestamps=False)
        texts = check_sources(targets)
        recordings = self._whole(self.recordings.split(sources, rate, tags))
        if len(recordings) != len(texts):
            raise ModelError(f"there are {len(recordings)} sources, but {len(texts)} targets")
        languages = self._languages(recordings, options, self.encoder_cache())
        calls = [Call(language=one, task=options.task) for one in languages]
        return self._score_calls([one.source for one in recordings], texts, calls, **asked)

    def stream(
        self,
        source: AudioSource,
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        language: str | None = None,
        task: str | None = None,
        **settings: Any,
    ) -> Iterator[str]:
        """Stream the output of one source of at most 30 s as it is generated."""
        options = self._options(language, task, timestamps=False)
        recordings = self._whole(self.recordings.split([source], rate, tags))
        encoder = self.encoder_cache()
        (found,) = self._languages(recordings, options, encoder)
        call = Call(language=found, task=options.task)
        context = replace(self.context_of(call), encoder=encoder)
        yield from self._stream(recordings[0].source, call, context, **settings)

    def detect_language(
        self, sources: Sequence[AudioSource], **more: Any
    ) -> list[dict[str, float]]:
        """The probability of each language in the first 30 s of each source, likeliest first."""
        recordings = self.recordings.split(sources, more.get("rate"), ())
        for recording in recordings:
            if recording.error:
                raise DataError(recording.error)
        return [detected.languages for detected in self._detect(recordings, self.encoder_cache())]

    # --------------------------------------------------------- language, task, speech

    def _options(
        self, language: str | None, task: str | None, timestamps: bool | None
    ) -> DecodingOptions:
        settings = self.prompt_settings
        timed = settings.timestamps if timestamps is None else timestamps
        options = DecodingOptions(language or settings.language, task or settings.task, timed)
        if options.task not in self.prompt_tokens.tasks:
            raise ModelError(f"task is {options.task}; it must be transcribe or translate")
        if options.task == "translate" and not self.prompt_tokens.multilingual:
            raise ModelError("this Whisper is for English alone and does not translate")
        self.prompt_tokens.check_language(options.language)
        return options

    def context_of(self, call: Call) -> PromptContext:
        """Its prompt; a tag such as de, of a call to another model that this one reranks, is the
        language."""
        known = self.prompt_tokens.languages
        tagged = next((tag for tag in call.tags if tag.strip("|") in known), None)
        options = self._options(call.language or tagged, call.task, call.timestamps)
        if options.language is None and self.prompt_tokens.multilingual:
            raise ModelError("Whisper needs the language of what it is to rerank: give it as a tag")
        return PromptContext(prompt=self.prompt_of(options, call.previous))

    def prompt_of(self, options: DecodingOptions, previous: Sequence[int] = ()) -> tuple[int, ...]:
        return self.prompt_tokens.prompt(
            options.language, options.task, options.timestamps, previous
        )

    def _language_of(self, tags: Sequence[str], language: str | None) -> str | None:
        """A tag before a source, such as <|de|>, is its language."""
        own = [tag.strip("|") for tag in tags]
        return next((tag for tag in own if tag in self.prompt_tokens.languages), language)

    def _languages(
        self, recordings: list[SegmentedRecording], options: DecodingOptions, encoder: EncoderCache
    ) -> list[str | None]:
        """The language of each recording: given, or detected."""
        known = [self._language_of(recording.tags, options.language) for recording in recordings]
        if None not in known or not self.prompt_tokens.multilingual:
            return known
        detected = self._detect(recordings, encoder)
        return [one or found.language for one, found in zip(known, detected, strict=True)]

    def _detect(
        self, recordings: list[SegmentedRecording], encoder: EncoderCache
    ) -> list[DetectedLanguage]:
        waves: list[Wave] = []
        maximum = round(self.recordings.longest * self.recordings.settings.sample_rate)
        for wave, why, _ in self.recordings.waves_of([one.source for one in recordings]):
            if wave is None:
                raise DataError(why)
            waves.append(wave[:maximum])
        return self.listen(waves, encoder)

    def listen(
        self, waves: Sequence[Wave], encoder: EncoderCache, *, languages: bool = True
    ) -> list[DetectedLanguage]:
        """What is spoken in each window: the language, if asked for, and whether anything is."""
        steps = self._steps_and_encode()[0]
        found: list[DetectedLanguage] = []
        with inference(self):
            for start in range(0, len(waves), ENCODED_AT_ONCE):
                memory = encoder.of_waves(waves[start : start + ENCODED_AT_ONCE])
                found += listen(steps, memory, self.prompt_tokens, languages=languages)
        return found

    # ------------------------------------------------------------------- recordings

    def _whole(self, recordings: list[SegmentedRecording]) -> list[SegmentedRecording]:
        for recording in recordings:
            if recording.error:
                raise DataError(recording.error)
            if not recording.whole:
                raise ModelError(
                    f"{recording.source} is longer than {self.recordings.longest:g} s; only run "
                    f"takes it"
                )
        return recordings

    def _joined(self, recording: SegmentedRecording, times: bool) -> Output:
        output = join_segments(recording, self.calibration, times)
        first = next((one for one in recording.outputs if one.language), None)
        if first is None:
            return output
        return replace(
            output, language=first.language, language_probability=first.language_probability
        )

    def diagonal(self, sources: Encoded, maximum: int = 0) -> float | None:
        return None

    def tags_of(self, tags: Sequence[str]) -> list[str]:
        """Tags are languages. Raises ModelError."""
        for tag in tags:
            if tag.strip("|") not in self.prompt_tokens.languages:
                raise ModelError(f"the model has no tag {tag}; {NO_TAGS}")
        return list(tags)

    @cached_property
    def prompt_tokens(self) -> PromptTokens:
        return PromptTokens.of(self.target_tokens, self.prompt_settings.multilingual)

    @property
    def prompt_settings(self) -> Prompt:
        assert self.recordings.settings.prompt is not None
        return self.recordings.settings.prompt

    def encoder_cache(self) -> EncoderCache:
        """Encodes each recording of a call once, with the weights of now."""
        with inference(self):
            self._check_packed()
            if self.audio_search is not None:
                self.audio_search.copy_weights()
            return EncoderCache(self._steps_and_encode()[1], self.device)

    # ---------------------------------------------------------------------- search

    def _steps_and_encode(self) -> tuple[ContextStepper, Encode]:
        """On a GPU those of the copy for search, which may be in bfloat16."""
        if self.audio_search is not None:
            return self.audio_search.copy, self.audio_search.copy.encode
        steps = self._plain_steps()
        return steps, getattr(steps, "encode", self._encoding_network.encode)

    @property
    def _encoding_network(self) -> SpeechEncoderDecoder:
        network = self._search_network
        assert isinstance(network, SpeechEncoderDecoder)
        return network

    def _stepper(self, settings: Settings, context: CallContext = NO_CONTEXT) -> Stepper:
        if settings.ctc_weight:
            raise ModelError("ctc_weight needs a model trained with CTC, and Whisper has none")
        own, encode = _prompted(context), self._encoding(context)

        def encoded(source_BS: Tensor, lengths_B: Tensor) -> EncoderOutput:
            return self._precise(encode(source_BS, lengths_B), self.network)

        steps = self._plain_steps()
        return PromptedSteps(steps, encoded, own.prompt, self._rules, self.device, context)

    def _fast_search(self, context: CallContext) -> FastSearch | None:
        search = self.audio_search
        if search is None:
            return None
        own, encode = _prompted(context), self._encoding(context)
        timestamps = self.prompt_tokens.no_timestamps not in own.prompt
        if timestamps not in search.rules:
            search.rules[timestamps] = RecordedRules(self._rules, timestamps, self.device)

        def encoded(waves: Sequence[Wave]) -> EncoderOutput:
            return self._precise(encode.of_waves(waves), search.copy)

        return AudioTask(search, encoded, own.prompt, search.rules[timestamps])

    @property
    def _rules(self) -> Rules:
        settings = self.prompt_settings
        return Rules(self.prompt_tokens, settings.suppress, settings.suppress_first)

    def _encoding(self, context: CallContext) -> EncoderCache:
        return _prompted(context).encoder or EncoderCache(self._steps_and_encode()[1], self.device)

    def _precise(self, memory: EncoderOutput, network: EncoderDecoder) -> EncoderOutput:
        """The encoder's states in the precision of a network that reads them."""
        if self.device.type == "cpu":
            return memory
        return replace(memory, states_BSD=memory.states_BSD.to(network.head.bias.dtype))

    def _bounds(
        self, settings: Settings, models: Sequence[GenerativeModel], context: CallContext
    ) -> Bounds:
        """At most half of the decoder's positions, as the other half is for the text before."""
        bounds = super()._bounds(settings, models, context)
        capacity = bounds.capacity - len(_prompted(context).prompt) + 1
        return replace(bounds, capacity=min(capacity, max(1, bounds.capacity // 2)))

    def _before(self, context: CallContext) -> list[int]:
        return _prompted(context).before
