"""Transducers (RNN-T) of speech: transcripts that are written while the audio is heard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn, cast

import numpy as np
import torch
from numpy.typing import NDArray

from transduce.data.audio.corpus import Wave
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import BEGIN, END, PAD, UNKNOWN, Tokens
from transduce.decoding.batch.decode import CANCELLED, Request
from transduce.decoding.combine.ngram import NgramModel
from transduce.decoding.constraints import read as constraints
from transduce.decoding.constraints.constraint import NEG_INF
from transduce.decoding.constraints.hotwords import HOTWORD_BEAM
from transduce.decoding.output import Output
from transduce.decoding.run_lens import RunLens
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.decoding.settings import Settings
from transduce.decoding.speech.timing import TokenTiming
from transduce.decoding.speech.transducer import (
    Recordings,
    emissions,
    search_batch,
    time_by_transducer,
)
from transduce.errors import ModelError
from transduce.models.build import Vocabulary, build_transducer
from transduce.models.call_context import NO_CONTEXT, Call, CallContext
from transduce.models.streaming import is_streaming
from transduce.models.transducer import SpeechTransducer
from transduce.nn.transducer.search import TransducerSearch
from transduce.recipe import Recipe
from transduce.runtime.fallbacks import warn_of_plain_cuda
from transduce.tasks.audio_input import AudioSegment
from transduce.tasks.compatibility import check_finite
from transduce.tasks.generate import GenerativeModel, IncrementalText
from transduce.tasks.language_model import LanguageModel
from transduce.tasks.live.agreement import AgreementRecogniser
from transduce.tasks.live.session import LiveRecogniser
from transduce.tasks.live.settings import StreamingSettings
from transduce.tasks.live.transducer import TransducerRecogniser
from transduce.tasks.live.utterance import scores_of
from transduce.tasks.model import inference
from transduce.tasks.observer import NO_OUTPUT, RunObserver, TokenStep
from transduce.tasks.speech import DIAGONAL_SAMPLE, SpeechModel

STREAMED = 25  # encoder states after which `stream` gives what is new: a second
REFUSED = (
    "attention",
    "prefix",
    "include",
    "exclude",
    "glossary",
    "ensemble",
    "rerank",
    "sample",
    "mbr",
    "no_repeat_ngram",
    "min_length",
    "coverage_penalty",
    "ctc_weight",
    "bidirectional",
)
"""Settings of `run` that a transducer has not: all of them are off where they are falsy."""


class SpeechTransducerModel(SpeechModel):
    """A transducer of speech, as `transduce.load` returns it for a recipe with `model.transducer`.

    It is used as other speech models are. Live, with greedy search, a transcript only grows: what
    was shown is never taken back.
    """

    network: SpeechTransducer  # type: ignore[assignment]
    scorer = "transducer"
    against_loops = ""  # the settings against them are not for a transducer

    @classmethod
    def build(  # type: ignore[override]
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> SpeechTransducer:
        assert recipe.audio is not None
        vocabulary = Vocabulary(len(source_tokens), len(target_tokens))
        return build_transducer(recipe.model, recipe.audio, vocabulary, len(source_tokens.tags))

    # ------------------------------------------------------------------------------- use

    def live_recogniser(self, **settings: Any) -> LiveRecogniser:
        """Live recognition: with model.encoder.chunk, every chunk of audio is heard once.

        Greedy search, unless a `beam` is asked for: transcripts then only grow. Otherwise as
        `SpeechModel.live_recogniser`.
        """
        if not is_streaming(self.network):
            self.settings(chunk_ms=settings.get("chunk_ms"))
            return AgreementRecogniser(self, **settings)
        if settings.get("ctc_weight"):
            self._refuse("ctc_weight")
        usual = {} if settings.get("hotwords") else {"beam": 1}  # which need other hypotheses
        given = {**usual, **settings, "ctc_weight": 0.0}
        chosen = StreamingSettings.of(self.recipe, self.recordings.longest, given)
        return TransducerRecogniser(self.recordings, chosen)

    def lens(self, *patterns: str, heads: Sequence[int] | None = None, top: int = 0) -> RunLens:
        raise ModelError(
            "a transducer has no attention to the audio to look at; "
            "transduce.inspection.speech_figure.draw_speech_attention draws when it emits each "
            "token, and transduce run --format textgrid writes it"
        )

    @property
    def times_tokens(self) -> bool:
        """It emits each token at a state: in a translation too, that is when it is written."""
        return True

    def diagonal(self, sources: Encoded, maximum: int = DIAGONAL_SAMPLE) -> float | None:
        """None: it has no attention that could stray."""
        return None

    def emissions(
        self, wave: Wave, ids: Sequence[int], tags: tuple[str, ...] = ()
    ) -> NDArray[np.float32]:
        """The probability [tokens, states] that each token is emitted at each encoder state."""
        recordings = Recordings(self.network, [wave], self.context_of(Call(tags)))
        with inference(self):
            return emissions(recordings, ids).cpu().numpy()

    # ------------------------------------------------------------------------------- search

    def _run(
        self,
        sources: Sequence[str],
        call: Call,
        own: CallContext | None = None,
        *,
        language_model: GenerativeModel | NgramModel | None = None,
        hotwords: constraints.Phrases = None,
        observer: RunObserver | None = None,
        **asked: Any,
    ) -> list[Output]:
        settings = self._transducer_settings(asked)
        language = _checked_language_model(language_model)
        watch = RunObserver() if observer is None else observer
        context = own or self.context_of(replace(call, chunk_ms=settings.chunk_ms))
        waves, _ = self._encode(list(sources))
        self._check_packed()
        network = cast(SpeechTransducer, self._search_network)
        if self.device.type == "cuda":
            warn_of_plain_cuda(network)
        limits = [self._limit(wave, settings, context) for wave in waves]
        outputs = [Output("", NEG_INF, warning=CANCELLED) for _ in sources]
        others = [language] if isinstance(language, LanguageModel) else []
        trees = constraints.hotwords_of(hotwords, len(sources), self.target_tokens)
        for tree in dict.fromkeys(trees):
            own_beam = settings.beam if tree is None else max(settings.beam or 1, HOTWORD_BEAM)
            search = self._search(network, replace(settings, beam=own_beam))
            added = (language, settings.lm_weight, tree, settings.hotword_bonus)
            places = [place for place, one in enumerate(trees) if one is tree]
            some = [cast(Wave, waves[place]) for place in places]
            recordings = Recordings(network, some, context)
            for batch in recordings.batches():
                gone = watch.cancelled()
                batch = [number for number in batch if places[number] not in gone]
                if not batch:
                    continue
                indices = [places[number] for number in batch]
                with inference(self, *others):
                    found = search_batch(
                        network,
                        recordings.encode(batch),
                        search,
                        [limits[index] - 1 for index in indices],  # without END
                        settings.length_penalty or 0.0,
                        exact=settings.scores or search.beam > 1,
                        bonus=scores_of(self, *added),
                        shown=tree is None,  # a bonus for hotwords is to choose by
                    )
                for index, hypotheses in zip(indices, found, strict=True):
                    if not hypotheses:
                        check_finite([self])
                        outputs[index] = Output("", NEG_INF, warning=NO_OUTPUT)
                        continue
                    best = hypotheses[: settings.nbest]
                    outputs[index] = self._output(sources[index], [], best)
                    outputs[index].note_length(limits[index])
                    if index in watch.watched:
                        self._show(watch, index, sources[index], hypotheses[0])
        return outputs

    def _show(self, observer: RunObserver, index: int, source: str, best: Hypothesis) -> None:
        """Tell an observer the tokens of a transcript, once it is there."""
        text = IncrementalText(self, source, [])
        for token in best.tokens:
            piece = self._pieces_of_head([token])[0]
            observer.token(index, TokenStep(text.add(token), piece, 0.0))
        end = self._pieces_of_head([END])[0]
        observer.token(index, TokenStep(text.rest(), end, best.log_probability, last=True))

    def _stream(
        self,
        source: str,
        call: Call,
        own: CallContext | None = None,
        *,
        hotwords: constraints.Phrases = None,
        **asked: Any,
    ) -> Iterator[str]:
        settings = self._transducer_settings({"beam": 1, **asked})
        if settings.hypotheses > 1:
            raise ModelError("stream needs a single hypothesis; set beam and nbest to 1")
        context = own or self.context_of(replace(call, chunk_ms=settings.chunk_ms))
        (wave,), _ = self._encode([source])
        search = self._search(self.network, settings)
        (tree,) = constraints.hotwords_of(hotwords, 1, self.target_tokens)
        bonus = scores_of(self, None, 0.0, tree, settings.hotword_bonus)
        with inference(self):
            memory = Recordings(self.network, [cast(Wave, wave)], context).encode([0])
            limit = torch.tensor([self._limit(wave, settings, context) - 1])  # without END
            found = search.start(1, self.device, limit)
        text, written = IncrementalText(self, source, []), 0
        for first in range(0, memory.states_BSD.shape[1], STREAMED):
            # The caller's code between two pieces must not run in inference mode.
            with inference(self):
                some_BSD = memory.states_BSD[:, first : first + STREAMED]
                count_1 = torch.tensor([some_BSD.shape[1]])
                found, _ = search.advance(found, some_BSD, count_1, bonus)
                tokens = found.tokens_BNU[0, 0, : int(found.lengths_BN[0, 0])].tolist()
            for token in tokens[written:]:
                if new := text.add(token):
                    yield new
            written = len(tokens)
        if new := text.rest():
            yield new

    def _limit(self, wave: list[int], settings: Settings, context: CallContext) -> int:
        """The most tokens of a transcript, END included."""
        request = Request(wave, states=self._states(wave))
        return self._bounds(settings, [self], context).limit(request, 0)

    def _search(self, network: SpeechTransducer, settings: Settings) -> TransducerSearch:
        allowed = constraints.allowed(settings.only, self.target_tokens)
        banned = {BEGIN, END, *self.target_tokens.tags.values()}
        if not settings.unknown:
            banned.add(UNKNOWN)
        if allowed is not None:
            banned |= set(range(len(self.target_tokens))) - {PAD, *allowed}
        return TransducerSearch(network, settings.hypotheses, PAD, banned=tuple(sorted(banned)))

    def _transducer_settings(self, asked: dict[str, Any]) -> Settings:
        """The settings of a run. Raises ModelError for those that a transducer has not."""
        for name in REFUSED:
            if asked.pop(name, None):
                self._refuse(name)
        if asked.get("groups", 1) > 1:
            self._refuse("groups")
        return self.settings(**asked)

    def _refuse(self, name: str) -> NoReturn:
        raise ModelError(f"{name} is not for a transducer (model.transducer); leave it out")

    # ------------------------------------------------------------------------------- scores

    def _log_probabilities(
        self, sources: Any, targets: Any, context: CallContext = NO_CONTEXT
    ) -> list[list[float]]:
        with inference(self):
            timings = time_by_transducer(Recordings(self.network, sources, context), targets)
        return [timing.attention for timing in timings]

    def _timings(
        self, segments: Sequence[AudioSegment], outputs: Sequence[Output], context: CallContext
    ) -> list[TokenTiming]:
        recordings = Recordings(self.network, [segment.wave for segment in segments], context)
        return time_by_transducer(recordings, [output.ids for output in outputs])


def _checked_language_model(
    language: GenerativeModel | NgramModel | None,
) -> LanguageModel | NgramModel | None:
    if language is None or isinstance(language, LanguageModel | NgramModel):
        return language
    raise ModelError(
        "language_model must be a model of task: language_modeling, or an n-gram model"
    )
