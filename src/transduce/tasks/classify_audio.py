"""The task classify for audio: a label for a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.decoding.output import Output
from transduce.decoding.run_lens import Labels
from transduce.decoding.score.labels import LogProbabilities, label_probabilities, pooling_weights
from transduce.errors import ModelError
from transduce.models.build import build_audio_label_network
from transduce.models.call_context import Call, CallContext
from transduce.models.speech import SpeechLabelNetwork
from transduce.recipe import Recipe
from transduce.tasks.audio_input import AudioInput, AudioSource, SegmentedRecording
from transduce.tasks.classify import Classifier
from transduce.tasks.model import inference


class AudioClassifier(Classifier):
    """An audio classifier: an encoder of audio, pooling and an output layer.

    `transduce.load` returns it for `task: classify` with audio.

        model = transduce.load("runs/digits")
        model("seven.wav")                              # 'seven'
        model.run([samples], rate=8000, nbest=2)        # .score and .probabilities: confidence
    """

    network: SpeechLabelNetwork

    @classmethod
    def build(
        cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens
    ) -> SpeechLabelNetwork:
        assert recipe.audio is not None
        labels = len(target_tokens) - len(SPECIALS)
        tags = len(source_tokens.tags)
        return build_audio_label_network(recipe.model, recipe.audio, labels, tags)

    @property
    def recordings(self) -> AudioInput:
        """How its sources are read."""
        return AudioInput(self)

    def set_feature_statistics(self, corpus: Encoded | StreamingDataset) -> None:
        self.recordings.set_feature_statistics(corpus)

    def _labels(self, source: str, ids: list[int], output: Output, context: CallContext) -> Labels:
        labels = super()._labels(source, [], output, context)
        return self.recordings.labels(labels, source, ids)

    def context_of(self, call: Call) -> CallContext:
        return self.recordings.context_of(call)

    def __call__(self, source: AudioSource, **settings: Any) -> str:
        """The most likely label of one source."""
        return self.run([source], **settings)[0].text

    def run(
        self,
        sources: Sequence[AudioSource],
        *,
        rate: int | None = None,
        tags: Sequence[str] = (),
        nbest: int = 1,
        attention: bool = False,
        **others: Any,
    ) -> list[Output]:
        """One output per source, in order: the label as text, its probability as score.

        A source is an audio file, or samples at `rate` Hz. Recordings longer than those in training
        are cut at silences, and the probabilities of their segments averaged, weighted by length.
        With nbest above 1, that many labels are the output's alternatives. attention: also the
        pooling weight of each 40 ms, where the model has attention pooling and the source is one
        segment. Silent audio gives an empty output with a `warning`; a source that cannot be used
        is also `failed`.
        """
        self.reject_settings(others, known=("rate", "tags", "nbest", "attention"))
        if nbest < 1:
            raise ModelError(f"nbest is {nbest}; it must be 1 or more")
        recordings = self.recordings.split(sources, rate, tags)
        found: dict[int, list[tuple[float, LogProbabilities]]] = {}
        maps: dict[int, NDArray[np.float32]] = {}
        for _, readable in self.recordings.read(recordings):
            for own, segments, entries in readable:
                rows = [cast("list[int]", segment.wave) for segment in segments]
                context = self.context_of(Call(own))
                with inference(self):
                    labels = label_probabilities(self.network, rows, context)
                    weights = pooling_weights(self.network, rows, context) if attention else None
                if self._lenses:
                    outputs = self._outputs([[]] * len(labels), labels, nbest)
                    self._record(list(zip(segments, rows, outputs, strict=True)), context)
                for place, (recording, start, end) in enumerate(entries):
                    found.setdefault(id(recording), []).append((end - start, labels[place]))
                    if weights is not None:
                        maps[id(recording)] = weights[place][None, None, None]
        return [
            self._labelled(one, found.get(id(one), []), maps.get(id(one)), nbest)
            for one in recordings
        ]

    def _labelled(
        self,
        recording: SegmentedRecording,
        segments: list[tuple[float, LogProbabilities]],
        map_LHTS: NDArray[np.float32] | None,
        nbest: int,
    ) -> Output:
        if recording.error:
            return Output("", float("-inf"), warning=recording.error, failed=True)
        notes = list(recording.remarks)
        if not segments:
            return Output("", 0.0, warning="; ".join(dict.fromkeys(notes)))
        shares = np.array([seconds for seconds, _ in segments])
        each = np.stack(
            [np.exp(log_probs_1V[0].astype(np.float64)) for _, log_probs_1V in segments]
        )
        mean_V = shares @ each / shares.sum()
        log_probs_1V = np.log(np.maximum(mean_V, 1e-30))[None].astype(np.float32)
        (output,) = self._outputs([[]], [log_probs_1V], nbest)
        if self.calibration is not None and (why := self.calibration.warning(output.score)):
            notes.append(f"{recording.source}: {why}")
        return replace(
            output,
            confidence=output.score,
            attention=map_LHTS if len(segments) == 1 else None,
            warning="; ".join(dict.fromkeys(notes)),
        )
