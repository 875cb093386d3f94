"""Whisper: transcribe or translate audio of many languages and of any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.audio.corpus import Wave
from transduce.data.batches.batch import collate
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import BEGIN, END, Tokens
from transduce.data.tokens.whisper_prompt import PromptTokens
from transduce.decoding.attention import Reading
from transduce.decoding.batch.decode import Bounds, FastSearch
from transduce.decoding.cuda.audio_search import AudioTask
from transduce.decoding.lens import Labels
from transduce.decoding.output import Output, Score
from transduce.decoding.score.given import attention_to_source
from transduce.decoding.search.greedy import Hypothesis, Stepper
from transduce.decoding.settings import Settings
from transduce.decoding.whisper.encoder_cache import EncoderCache
from transduce.decoding.whisper.steps import (
    Encode,
    Heard,
    PromptedSteps,
    RecordedRules,
    Rules,
    Steps,
    listen,
)
from transduce.errors import DataError, ModelError
from transduce.models.build import Vocabulary, build_audio
from transduce.models.memory import Memory
from transduce.models.speech import SpeechEncoderDecoder
from transduce.recipe import Recipe
from transduce.recipe.audio import Prompt
from transduce.tasks.audio_input import AudioSource, SegmentedRecording, groups
from transduce.tasks.generate import GenerativeModel, Ids
from transduce.tasks.join_transcripts import join_segments
from transduce.tasks.model import check_sources, inference
from transduce.tasks.observer import RunObserver
from transduce.tasks.speech import SpeechModel
from transduce.tasks.whisper.windows import Progress, Way, Windows

NO_TAGS = "Whisper has no tags: give language and task instead"


class WhisperModel(SpeechModel):
    """Base of speech models whose outputs begin with a prompt (audio.prompt in the recipe).

    model = transduce.load("whisper-base")
    model("talk.flac")                                 # the language is detected
    model.run(["talk.flac"], language="de", task="translate", times=True)
    """

    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self._prompt: tuple[int, ...] | None = None
        """The prompt of what is being decoded; see `prompted`."""
        self._encoder: EncoderCache | None = None

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

    @cached_property
    def prompt_tokens(self) -> PromptTokens:
        return PromptTokens.of(self.target_tokens, self.prompt_settings.multilingual)

    @property
    def prompt_settings(self) -> Prompt:
        assert self.audio.prompt is not None
        return self.audio.prompt

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
        fallback: bool = False,
        **asked: Any,
    ) -> list[Output]:
        """One output per source, in order; sources and further keywords as in SpeechModel.run.

        language: such as "en"; None: the recipe's, or detected in the first 30 s. task:
        "transcribe", or "translate" to English. timestamps: predict them, which gives segments;
        recordings longer than 30 s need them. prompt: text that goes before, such as names to
        spell. previous_text: each window sees the text of the one before. fallback: outputs that
        repeat themselves or are unlikely are sampled again, at rising temperatures.
        """
        way = self._way(language, task, timestamps)
        recordings = self.split_recordings(sources, rate, tags)
        number_of = {id(recording): number for number, recording in enumerate(recordings)}
        for group in groups(recordings):
            progress = []
            for own, segments, entries in self.readable_segments(group):
                for segment, (recording, start, _) in zip(segments, entries, strict=True):
                    progress.append(
                        Progress(
                            recording,
                            segment.wave,
                            number_of[id(recording)],
                            start,
                            self._language_of(own, way.language),
                            self.target_tokens.encode(prompt) if prompt else [],
                        )
                    )
            windows = Windows(self, way, times, previous_text, fallback, observer, asked)
            with inference(self):
                windows.run(sorted(progress, key=lambda one: one.number))
        return [self._joined(recording) for recording in recordings]

    def decode_windows(self, segments: Sequence[str], **asked: Any) -> list[Output]:
        """The outputs of windows, within `prompted`: search as any model's."""
        return super(SpeechModel, self).run(segments, **asked)

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
        way = self._way(language, task, timestamps=False)
        texts = check_sources(targets)
        recordings = self._whole(self.split_recordings(sources, rate, tags))
        if len(recordings) != len(texts):
            raise ModelError(f"there are {len(recordings)} sources, but {len(texts)} targets")
        found: dict[int, Score] = {}
        before = [len(lens) for lens in self._lenses]
        with self.caching():
            languages = self._languages(recordings, way)
            for own in dict.fromkeys(languages):
                places = [n for n, one in enumerate(languages) if one == own]
                with self.prompted(self.prompt_of(replace(way, language=own))):
                    scores = super(SpeechModel, self).score(
                        [recordings[n].source for n in places], [texts[n] for n in places], **asked
                    )
                found |= dict(zip(places, scores, strict=True))
        for lens, start in zip(self._lenses, before, strict=True):
            looked = dict(zip(found, lens.seen[start:], strict=True))
            lens.seen[start:] = [looked[n] for n in range(len(recordings))]
        return [found[n] for n in range(len(recordings))]

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
        way = self._way(language, task, timestamps=False)
        recordings = self._whole(self.split_recordings([source], rate, tags))
        with self.caching():
            (found,) = self._languages(recordings, way)
            with self.prompted(
                self.prompt_of(replace(way, language=found)), *settings.get("ensemble", ())
            ):
                yield from super(SpeechModel, self).stream(recordings[0].source, **settings)

    def detect_language(
        self, sources: Sequence[AudioSource], **more: Any
    ) -> list[dict[str, float]]:
        """The probability of each language in the first 30 s of each source, likeliest first."""
        recordings = self.split_recordings(sources, more.get("rate"), ())
        for recording in recordings:
            if recording.error:
                raise DataError(recording.error)
        with self.caching():
            return [heard.languages for heard in self._heard(recordings)]

    # ------------------------------------------------------------------------ the prompt

    @contextmanager
    def prompted(self, prompt: tuple[int, ...], *others: GenerativeModel) -> Iterator[None]:
        """Within, outputs of this model, and of others in an ensemble, come after a prompt."""
        models = [one for one in (self, *others) if isinstance(one, WhisperModel)]
        before = [model._prompt for model in models]
        for model in models:
            model._prompt = prompt
        try:
            yield
        finally:
            for model, prompt_before in zip(models, before, strict=True):
                model._prompt = prompt_before

    @contextmanager
    def caching(self) -> Iterator[EncoderCache]:
        """Within, each recording is encoded once."""
        with inference(self):
            self._check_packed()
            if self.audio_search is not None:
                self.audio_search.copy_weights()
            before, self._encoder = (
                self._encoder,
                EncoderCache(self._steps_and_encode()[1], self.device),
            )
            try:
                yield self._encoder
            finally:
                self._encoder = before

    def _way(self, language: str | None, task: str | None, timestamps: bool | None) -> Way:
        settings = self.prompt_settings
        timed = settings.timestamps if timestamps is None else timestamps
        way = Way(language or settings.language, task or settings.task, timed)
        if way.task not in self.prompt_tokens.tasks:
            raise ModelError(f"task is {way.task}; it must be transcribe or translate")
        if way.task == "translate" and not self.prompt_tokens.multilingual:
            raise ModelError("this Whisper is for English alone and does not translate")
        self.prompt_tokens.check_language(way.language)
        return way

    def prompt_of(self, way: Way, previous: Sequence[int] = ()) -> tuple[int, ...]:
        return self.prompt_tokens.prompt(way.language, way.task, way.timestamps, previous)

    def _language_of(self, tags: Sequence[str], language: str | None) -> str | None:
        """A tag before a source, such as <|de|>, is its language."""
        own = [tag.strip("|") for tag in tags]
        return next((tag for tag in own if tag in self.prompt_tokens.languages), language)

    def _check_tags(self, tags: Sequence[str]) -> None:
        for tag in tags:
            if tag.strip("|") not in self.prompt_tokens.languages:
                raise ModelError(f"the model has no tag {tag}; {NO_TAGS}")

    def _whole(self, recordings: list[SegmentedRecording]) -> list[SegmentedRecording]:
        for recording in recordings:
            if recording.error:
                raise DataError(recording.error)
            if not recording.whole:
                raise ModelError(
                    f"{recording.source} is longer than {self.longest:g} s; only run takes it"
                )
        return recordings

    def _languages(self, recordings: list[SegmentedRecording], way: Way) -> list[str | None]:
        """The language of each recording: given, or detected."""
        known = [self._language_of(recording.tags, way.language) for recording in recordings]
        if None not in known or not self.prompt_tokens.multilingual:
            return known
        heard = self._heard(recordings)
        return [one or found.language for one, found in zip(known, heard, strict=True)]

    def _heard(self, recordings: list[SegmentedRecording]) -> list[Heard]:
        waves: list[Wave] = []
        most = round(self.longest * self.audio.sample_rate)
        for wave, why, _ in self.waves_of([one.source for one in recordings]):
            if wave is None:
                raise DataError(why)
            waves.append(wave[:most])
        return self.listen(waves)

    def listen(self, waves: Sequence[Wave]) -> list[Heard]:
        """What is spoken in each window: language, and whether anything is."""
        batch = collate([cast("list[int]", wave) for wave in waves], None)
        steps, encode = self._steps_and_encode()
        encode = self._encoder or EncoderCache(encode, self.device)
        memory = encode(batch.source_BS, batch.source_lengths_B)
        return listen(steps, memory, self.prompt_tokens)

    def memory_of(self, wave: Wave) -> Memory:
        """The encoder's states of one window."""
        batch = collate([cast("list[int]", wave)], None)
        encode = self._encoder or EncoderCache(self.network.encode, self.device)
        return encode(batch.source_BS, batch.source_lengths_B)

    # ------------------------------------------------------------------------- implementation

    def _steps_and_encode(self) -> tuple[Steps, Encode]:
        """On a GPU those of the copy for search, which may be in bfloat16."""
        if self.audio_search is not None:
            return self.audio_search.copy, self.audio_search.copy.encode
        steps: Any = super()._stepper(Settings())
        return steps, getattr(steps, "encode", self._encoding_network.encode)

    @property
    def _encoding_network(self) -> SpeechEncoderDecoder:
        network = self._search_network
        assert isinstance(network, SpeechEncoderDecoder)
        return network

    def _stepper(self, settings: Settings) -> Stepper:
        steps: Any = super()._stepper(settings)
        assert self._prompt is not None
        return PromptedSteps(
            steps, self._encoded_in(self.network), self._prompt, self._rules, self.device
        )

    def _fast_search(self) -> FastSearch | None:
        search = self.audio_search
        if search is None:
            return None
        assert self._prompt is not None
        timestamps = self.prompt_tokens.no_timestamps not in self._prompt
        if timestamps not in search.rules:
            search.rules[timestamps] = RecordedRules(self._rules, timestamps, self.device)
        encode = self._encoded_in(search.copy)
        return AudioTask(search, encode, self._prompt, search.rules[timestamps])

    @property
    def _rules(self) -> Rules:
        settings = self.prompt_settings
        return Rules(self.prompt_tokens, settings.suppress, settings.suppress_first)

    def _encoded_in(self, network: SpeechEncoderDecoder) -> Encode:
        """The encoder's states, in the precision of a network that reads them."""
        encode = self._encoder or EncoderCache(self._steps_and_encode()[1], self.device)
        kind = network.head.bias.dtype

        def cast_to(source_BS: Tensor, lengths_B: Tensor) -> Memory:
            memory = encode(source_BS, lengths_B)
            return replace(memory, states_BSD=memory.states_BSD.to(kind))

        return cast_to if self.device.type != "cpu" else encode

    def _bounds(self, settings: Settings, models: Sequence[GenerativeModel]) -> Bounds:
        """At most half of the decoder's positions, as the other half is for the text before."""
        bounds = super()._bounds(settings, models)
        assert self._prompt is not None
        room = bounds.room - len(self._prompt) + 1
        return replace(bounds, room=min(room, max(1, bounds.room // 2)))

    def _cut_at_silences(self, recording: SegmentedRecording, *_: Any) -> None:
        """Long recordings are not cut beforehand: timestamps say where the next window begins."""
        recording.whole = False

    def _joined(self, recording: SegmentedRecording) -> Output:
        output = join_segments(recording, self.calibration)
        first = next((one for one in recording.outputs if one.language), None)
        if first is None:
            return output
        return replace(
            output, language=first.language, language_probability=first.language_probability
        )

    def diagonal(self, sources: Encoded, most: int = 0) -> float | None:
        return None

    @property
    def _before(self) -> list[int]:
        """The tokens between BEGIN and an output; what goes before BEGIN is not shown."""
        assert self._prompt is not None
        return list(self._prompt[self._prompt.index(BEGIN) + 1 :])

    def _log_probabilities(self, sources: Any, targets: Any) -> list[list[float]]:
        before = self._before
        whole = [[*before, *ids] for ids in targets]
        found: list[list[float]] = super()._log_probabilities(sources, whole)  # type: ignore[misc]
        return [values[len(before) :] for values in found]

    def _read(
        self, names: list[str], sources: Ids, targets: Ids, top: int, given: bool
    ) -> list[Reading]:
        whole = [[*self._before, *ids] for ids in targets]
        return super()._read(names, sources, whole, top, given)

    def _labels(self, source: str, ids: list[int], output: Output) -> Labels:
        labels = super()._labels(source, ids, output)
        whole = [*self._before, *output.ids]
        pieces = self.target_tokens.pieces
        return replace(
            labels, target_tokens=pieces([*whole, END]), prefix_tokens=pieces([BEGIN, *whole])
        )

    def _attention(
        self, sources: Ids, found: list[list[Hypothesis]]
    ) -> dict[int, NDArray[np.float32]]:
        places = [place for place, hypotheses in enumerate(found) if hypotheses]
        before = self._before
        targets = [[*before, *found[place][0].tokens] for place in places]
        with inference(self):
            maps = attention_to_source(self.network, [sources[p] for p in places], targets)
        return {p: m[:, :, len(before) :] for p, m in zip(places, maps or [], strict=False)}
