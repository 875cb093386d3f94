"""Speech models: transcribe or translate audio of any length, with word timestamps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from transduce.data.audio.corpus import AudioCorpus, Wave
from transduce.data.batches.batch import pad_waves
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import END, Tokens
from transduce.decoding.batch.decode import BatchDecoder, FastSearch
from transduce.decoding.combine.ctc_and_lm import CtcScorer
from transduce.decoding.combine.ngram import NgramModel
from transduce.decoding.combine.ngram_fusion import log_probability as ngram_log_probability
from transduce.decoding.combine.ngram_fusion import scorer_of
from transduce.decoding.cuda.pool import AudioTask, CudaSearch, has_cuda_search
from transduce.decoding.output import Output, Score
from transduce.decoding.run_lens import Labels
from transduce.decoding.search.hypothesis import Hypothesis, penalty
from transduce.decoding.search.stepper import ContextStepper, Stepper
from transduce.decoding.settings import Settings
from transduce.decoding.speech.confidence import geometric_mean
from transduce.decoding.speech.timing import (
    TokenTiming,
    attention_diagonality,
    attention_warning,
    skipped_warning,
    time_tokens,
    timed_words,
)
from transduce.decoding.speech.warnings import find_loop
from transduce.errors import DataError, ModelError
from transduce.models.build import Vocabulary, build_audio
from transduce.models.call_context import NO_CONTEXT, Call, CallContext
from transduce.models.encoder_output import EncoderOutput
from transduce.models.speech import SpeechEncoderDecoder
from transduce.models.streaming import is_streaming
from transduce.recipe import Recipe
from transduce.tasks.audio_input import AudioInput, AudioSegment, AudioSource, Group, Readable
from transduce.tasks.encoder_decoder import Transducer
from transduce.tasks.generate import GenerativeModel, Ids
from transduce.tasks.join_transcripts import LENGTH, join_segments, with_times
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.live.agreement import AgreementRecogniser
from transduce.tasks.live.session import LiveRecogniser, LiveSession
from transduce.tasks.live.settings import StreamingSettings, chunk_states
from transduce.tasks.live.streaming import CtcRecogniser
from transduce.tasks.model import check_sources, inference
from transduce.tasks.observer import PartObserver, RunObserver, SourceFeed, TokenStep

DIAGONAL_SAMPLE = 64  # recordings for the mean diagonality of attention


class SpeechModel(Transducer):
    """A model that generates text from audio: speech recognition and speech translation.

    `transduce.load` returns it for `task: transduce` with audio.

        model = transduce.load("runs/asterisk")
        model("prompt.wav")                             # the transcript
        model(samples, rate=16000)
        model.run(["talk.flac", "talk.flac#t=60,75"], times=True)
    """

    against_loops: ClassVar[str] = "try no_repeat_ngram (--no-repeat-ngram)"
    """What to do about outputs that repeat themselves."""

    scorer: ClassVar[str] = "attention"
    """What gives the probabilities of tokens, besides CTC; by this name among `Output.parts`."""

    network: SpeechEncoderDecoder

    @classmethod
    def build(
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> SpeechEncoderDecoder:
        assert recipe.audio is not None
        vocabulary = Vocabulary(len(source_tokens), len(target_tokens))
        return build_audio(recipe.model, recipe.audio, vocabulary, len(source_tokens.tags))

    @property
    def recordings(self) -> AudioInput:
        """How its sources are read."""
        return AudioInput(self)

    def set_feature_statistics(self, corpus: Encoded | StreamingDataset) -> None:
        self.recordings.set_feature_statistics(corpus)

    def _labels(self, source: str, ids: list[int], output: Output, context: CallContext) -> Labels:
        labels = super()._labels(source, [], output, context)
        return self.recordings.labels(labels, source, ids)

    # ------------------------------------------------------------------------------- use

    def __call__(self, source: AudioSource, **settings: Any) -> str:
        """The best output's text for one source."""
        return self.run([source], **{"scores": False, **settings})[0].text

    def run(
        self,
        sources: Sequence[AudioSource],
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        times: bool = False,
        observer: RunObserver | None = None,
        **asked: Any,
    ) -> list[Output]:
        """Decode recordings: one output for each, in order.

        Recordings longer than those in training are cut at silences and the transcripts joined;
        only some minutes are in memory at a time. A file that cannot be used is `failed` and has a
        `warning`; an output of unusually low confidence has a `warning`.

        Args:
            sources: audio files, where `talk.flac#t=60,75` is a part of one in seconds; or samples,
                NumPy arrays or tensors, floating point of full scale ±1 or int16.
            rate: samples per second, of samples.
            tags: tags of all sources, such as a language.
            times: also word timestamps, the score of each scorer (attention, CTC, language model)
                and the confidence of each token.
            observer: sees the tokens of recordings that are not cut, and of others the text of each
                segment.
            **settings: the other arguments of `GenerativeModel.run`.
        """
        reranker = asked.get("rerank")
        if isinstance(reranker, GenerativeModel) and not isinstance(reranker, SpeechModel):
            raise ModelError(
                "rerank needs a speech model for a speech model; use language_model for text models"
            )
        recordings = self.recordings.split(sources, rate, tags)
        number_of = {id(recording): number for number, recording in enumerate(recordings)}
        for group, readable in self.recordings.read(recordings):
            self._transcribe(group, readable, times, asked, observer, number_of)
        return [join_segments(recording, self.calibration, times) for recording in recordings]

    def _transcribe(
        self,
        group: Group,
        readable: Sequence[Readable],
        times: bool,
        asked: Any,
        observer: RunObserver | None,
        number_of: Mapping[int, int],
    ) -> None:
        """Transcribe the segments of a group, in one search for each set of tags."""
        others = [*self.decoder.ensemble_of(asked.get("ensemble")), asked.get("rerank")]
        further = [*others, asked.get("language_model")]
        models = [one for one in (self, *further) if isinstance(one, GenerativeModel)]
        lenses = [lens for one in models for lens in one._lenses]
        before = [len(lens) for lens in lenses]
        place_of = {id(entry): place for place, entry in enumerate(group)} if lenses else {}
        order: dict[int, int] = {}
        for tags, segments, entries in readable:
            if lenses:
                order |= {id(p): place_of[id(e)] for p, e in zip(segments, entries, strict=True)}
            part = None
            if observer is not None:
                numbers = [number_of[id(recording)] for recording, _, _ in entries]
                cut = {number_of[id(r)] for r, _, _ in entries if not r.whole}
                part = PartObserver(observer, numbers, hidden=cut)
            call = Call(tags)
            outputs = self._run(segments, call, observer=part, **asked)
            # Confidence must not include the language model's share: score again without it.
            rescored = times or asked.get("language_model") is not None
            timed = self._timed(segments, outputs, call, asked) if rescored else outputs
            for (recording, start, end), plain, full in zip(entries, outputs, timed, strict=True):
                output = full if times else replace(plain, confidence=full.confidence)
                if observer is not None and not recording.whole:
                    text = " " * any(one.text for one in recording.outputs) + output.text
                    number = number_of[id(recording)]
                    if output.text and number in observer.watched:
                        observer.token(number, TokenStep(text, text, output.log_probability))
                recording.outputs.append(with_times(output, start, end))
        for lens, start in zip(lenses, before, strict=True):  # what has other tags came later
            lens.entries[start:] = sorted(
                lens.entries[start:], key=lambda seen: order[id(seen.source)]
            )

    def score(
        self,
        sources: Sequence[AudioSource],
        targets: Sequence[str],
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        **asked: Any,
    ) -> list[Score]:
        """Score given targets: the log-probability of each of their tokens.

        Sources, rate and tags are as in `run`; sources are not cut into segments.
        """
        recordings, texts = self.recordings.split(sources, rate, tags), check_sources(targets)
        if len(recordings) != len(texts):
            raise ModelError(f"there are {len(recordings)} sources, but {len(texts)} targets")
        for recording in recordings:
            if recording.error:
                raise DataError(recording.error)
        return self._score_calls(
            [recording.source for recording in recordings],
            texts,
            [Call(recording.tags) for recording in recordings],
            **asked,
        )

    def _score_calls(
        self, sources: Sequence[str], texts: Sequence[str], calls: Sequence[Call], **asked: Any
    ) -> list[Score]:
        """Score texts, where each may ask for something else; what is asked alike in one pass."""
        found: dict[int, Score] = {}
        before = [len(lens) for lens in self._lenses]
        for call in dict.fromkeys(calls):
            places = [place for place, one in enumerate(calls) if one == call]
            some, given = [sources[n] for n in places], [texts[n] for n in places]
            scores = self._score(some, given, self.context_of(call), **asked)
            found |= dict(zip(places, scores, strict=True))
        for lens, start in zip(self._lenses, before, strict=True):
            looked = dict(zip(found, lens.entries[start:], strict=True))
            lens.entries[start:] = [looked[place] for place in range(len(calls))]
        return [found[place] for place in range(len(calls))]

    def stream(
        self,
        source: AudioSource,
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        **settings: Any,
    ) -> Iterator[str]:
        """Stream the output of one source as it is generated; it is not cut into segments."""
        (recording,) = self.recordings.split([source], rate, tags)
        if recording.error:
            raise DataError(recording.error)
        yield from self._stream(recording.source, Call(recording.tags), **settings)

    def live(self, rate: int = 16_000, *, tags: Sequence[str] = (), **settings: Any) -> LiveSession:
        """A session that recognises audio while it arrives, at `rate` samples a second.

        with model.live(rate=16000) as session:
            transcripts = session.feed(samples) + session.finish()

        Settings are those of `live_recogniser`, which is for several sessions at a time.
        """
        return self.live_recogniser(**settings).session(rate, tags)

    def live_recogniser(self, **settings: Any) -> LiveRecogniser:
        """Live recognition with these settings, for any number of sessions. Raises ModelError.

        Settings for all models: `silence`, `sentence_silence`, `no_speech` and `longest`, all in
        seconds, say when an utterance is over. Further ones of models with
        model.encoder.chunk are in tasks/live/settings.py too; others recognise each
        utterance again and again (tasks/live/agreement.py): `every` so many seconds, with the
        settings of `run`.
        """
        if is_streaming(self.network) and self.has_same_ctc:
            chosen = StreamingSettings.of(self.recipe, self.recordings.longest, settings)
            return CtcRecogniser(self.recordings, chosen)
        self.settings(chunk_ms=settings.get("chunk_ms"))
        return AgreementRecogniser(self, **settings)

    def _timed(
        self, segments: list[AudioSegment], outputs: list[Output], call: Call, asked: Any
    ) -> list[Output]:
        """The outputs with word timestamps, confidence, and the score of each scorer."""
        known = [one.name for one in fields(Settings)]
        settings = self.settings(**{name: asked[name] for name in known if name in asked})
        share = settings.ctc_weight or 0.0
        context = self.context_of(replace(call, chunk_ms=settings.chunk_ms))
        with inference(self):
            timings = self._timings(segments, outputs, context)
        language_model, ngrams, endless = asked.get("language_model"), None, False
        if isinstance(language_model, NgramModel):
            ngrams = scorer_of(language_model, self.target_tokens, "cpu")
            endless = ngrams.endless
        elif isinstance(language_model, LanguageModel):
            endless = language_model.endless
        timed = []
        for segment, output, timing in zip(segments, outputs, timings, strict=True):
            parts = {self.scorer: sum(timing.attention)}
            if timing.ctc is not None:
                parts["ctc"] = timing.ctc
            if isinstance(language_model, LanguageModel):
                text = [*output.ids, *([] if language_model.endless else [END])]
                parts["language_model"] = float(language_model.log_probabilities([text])[0].sum())
            if ngrams is not None:
                parts["language_model"] = ngram_log_probability(ngrams, output.ids)
            own = (1 - share) * parts[self.scorer] + share * parts.get("ctc", 0.0)
            if endless and settings.lm_weight:
                # It does not add its log-probability: it moves that of tokens that go on.
                added = output.log_probability - own
                parts["language_model"] = added / settings.lm_weight
            power = settings.length_penalty or 0.0
            parts[LENGTH] = float(penalty(len(output.ids) + 1, power))
            tokens = range(len(timing.attention))
            warning = (
                output.warning
                or skipped_warning(self.network, segment, segment.wave, timing)
                or (attention_warning(segment, timing) if self.transcribes else "")
            )
            timed.append(
                replace(
                    output,
                    parts=parts,
                    words=timed_words(self.network, self.target_tokens, output.ids, timing, share),
                    probabilities=[timing.confidence(n, n + 1, share) for n in tokens],
                    confidence=geometric_mean(own, len(output.ids) + 1),
                    warning=warning,
                )
            )
        return timed

    def _timings(
        self, segments: Sequence[AudioSegment], outputs: Sequence[Output], context: CallContext
    ) -> list[TokenTiming]:
        """When each token of the outputs was heard, and how probable it is."""
        return time_tokens(
            self.network,
            [cast("list[int]", segment.wave) for segment in segments],
            [output.ids for output in outputs],
            ctc=self.has_same_ctc,
            follows=self.transcribes,
            context=context,
        )

    def diagonal(self, sources: Encoded, maximum: int = DIAGONAL_SAMPLE) -> float | None:
        """Diagonality: how monotonically attention moves along the audio, at most 1.

        The mean over some of the recordings, for the head with the highest; None: unknown.
        """
        if not self.transcribes or not isinstance(sources, AudioCorpus):
            return None
        known = list(self.source_tokens.tags)
        by_tags: dict[tuple[str, ...], list[int]] = {}
        for row in range(min(maximum, len(sources))):
            there = [] if sources.tags is None else np.flatnonzero(sources.tags[row]).tolist()
            by_tags.setdefault(tuple(known[number] for number in there), []).append(row)
        found = []
        for tags, rows in by_tags.items():
            waves = [cast("list[int]", sources.wave(row)) for row in rows]
            texts = [sources.target(row).tolist() for row in rows]
            context = self.context_of(Call(tags))
            with inference(self):
                moved = attention_diagonality(self.network, waves, texts, context)
            found += [] if moved is None else [(moved, len(rows))]
        return sum(moved * n for moved, n in found) / sum(n for _, n in found) if found else None

    # ------------------------------------------------------------------------- implementation

    @property
    def transcribes(self) -> bool:
        """Whether the output is a transcript, which follows the audio; a translation need not."""
        return self.recipe.data.tokens.both is not None

    @property
    def has_same_ctc(self) -> bool:
        """Whether CTC predicts the output tokens: the same text and vocabulary."""
        return self.network.ctc is not None and self.transcribes

    @property
    def times_tokens(self) -> bool:
        """Whether it knows when each output token was heard, and not by attention."""
        return self.has_same_ctc

    def _encode(
        self, sources: list[str], ensemble: Sequence[GenerativeModel] = ()
    ) -> tuple[Ids, dict[int, str]]:
        waves: list[Wave] = []
        for wave, trouble, _ in self.recordings.waves_of(sources):
            if wave is None:
                raise DataError(trouble)
            waves.append(wave)
        return cast(Ids, waves), {}

    def context_of(self, call: Call) -> CallContext:
        """One that was not trained to read in chunks reads whole recordings: it may rerank what
        another has streamed."""
        context = self.recordings.context_of(call)
        if call.chunk_ms is None or not is_streaming(self.network):
            return context
        return replace(
            context, chunk=chunk_states(call.chunk_ms, self.recordings.settings.state_ms)
        )

    def _pieces(self, source: str, ids: list[int]) -> list[str]:
        return []

    def _seed(self, seed: int, source: str) -> int:
        return super()._seed(seed, Path(source).name)  # wherever the file is

    def _states(self, source: list[int]) -> int:
        return self.network.states_of(len(source))

    def _output(self, source: str, ids: list[int], hypotheses: list[Hypothesis]) -> Output:
        output = super()._output(source, [], hypotheses)
        loop = find_loop(output.ids)
        if loop is None:
            return replace(output, source_tokens=[])
        text = self.target_tokens.decode(output.ids[loop.start : loop.start + loop.length])
        warning = f"{source}: {text.strip()!r} is repeated {loop.times} times in a row"
        warning += f"; {self.against_loops}" if self.against_loops else ""
        return replace(output, source_tokens=[], warning=warning)

    def _stepper(self, settings: Settings, context: CallContext = NO_CONTEXT) -> Stepper:
        if not settings.ctc_weight:
            return super()._stepper(settings, context)
        if not self.has_same_ctc:
            raise ModelError(
                "ctc_weight needs a model trained with CTC on its output tokens (model.ctc_weight "
                "and data.tokens.both)"
            )
        network = self._search_network
        assert isinstance(network, SpeechEncoderDecoder)
        steps: ContextStepper = self._plain_steps()
        return CtcScorer(network, steps, settings.ctc_weight, context)

    def _configure(self, task: BatchDecoder) -> BatchDecoder:
        if not task.settings.ctc_weight:
            return task
        # CTC's probability of every token and its logarithm, in float32.
        return replace(task, state_bytes=2 * 4 * len(self.source_tokens))

    def run_feed(self, feed: SourceFeed, **settings: Any) -> bool:
        """False: recordings wait for a batch, as they are encoded together."""
        return False

    @property
    def audio_search(self) -> CudaSearch | None:
        """Search with CUDA graphs; None on a CPU, or of a network that has none."""
        if not has_cuda_search(self.network):
            return None
        return self.copies.cuda(self.network, self.recipe.model.width)

    def _fast_search(self, context: CallContext) -> FastSearch | None:
        found = self.audio_search
        if found is None:
            return None

        def encode(waves: Sequence[Wave]) -> EncoderOutput:
            return self.network.encode(*pad_waves(waves, self.device), **context.keywords)

        return AudioTask(found, encode)
