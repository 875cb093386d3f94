"""The task classify with audio as its source: a recording to one of a few labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.decoding.output import Output
from transduce.decoding.score.labels import LogProbabilities, label_probabilities, pooling_weights
from transduce.errors import ModelError
from transduce.models.speech_labeller import SpeechLabeller, build_audio_labeller
from transduce.recipe import Recipe
from transduce.tasks.audio_input import AudioInputModel, AudioSource, CutRecording, groups
from transduce.tasks.classify import Classifier
from transduce.tasks.model import ready


class AudioClassifier(AudioInputModel, Classifier):
    """An encoder of audio, a pool and a head.

    model = transduce.load("runs/digits")
    model("seven.wav")                              # 'seven'
    model.run([samples], rate=8000, nbest=2)        # .score and .probabilities: how sure it is
    """

    network: SpeechLabeller

    @classmethod
    def build(cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> SpeechLabeller:
        assert recipe.audio is not None
        labels = len(target_tokens) - len(SPECIALS)
        tags = len(source_tokens.tags)
        return build_audio_labeller(recipe.model, recipe.audio, labels, tags)

    def __call__(self, source: AudioSource, **settings: Any) -> str:
        """The likeliest label of one source."""
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
        """One output a source, in order: the label as text, its probability as its score.

        A source is an audio file, or samples at `rate` a second, as for models that write. What is
        longer than anything in training is cut at its pauses, and probabilities are averaged over
        its pieces, each as much as it lasts. With nbest above 1, that many labels are the output's
        alternatives. With attention, how much of what is pooled each 40 ms are, where the model
        pools by attention and the source is one piece. What is silent comes back empty, with a
        `warning`; what cannot be used is `failed` too.
        """
        self.refuse(others, known=("rate", "tags", "nbest", "attention"))
        if nbest < 1:
            raise ModelError(f"nbest is {nbest}; it must be 1 or more")
        recordings = self.listen_to(sources, rate, tags)
        found: dict[int, list[tuple[float, LogProbabilities]]] = {}
        maps: dict[int, NDArray[np.float32]] = {}
        for group in groups(recordings):
            for own, pieces, entries in self.heard(group):
                rows = [cast("list[int]", piece.wave) for piece in pieces]
                with self.tagged(own), ready(self):
                    labels = label_probabilities(self.network, rows)
                    weights = pooling_weights(self.network, rows) if attention else None
                    if self._lenses:
                        outputs = [self._output([], one, nbest) for one in labels]
                        self._look(list(zip(pieces, rows, outputs, strict=True)))
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
        recording: CutRecording,
        pieces: list[tuple[float, LogProbabilities]],
        map_LHTS: NDArray[np.float32] | None,
        nbest: int,
    ) -> Output:
        if recording.trouble:
            return Output("", float("-inf"), warning=recording.trouble, failed=True)
        told = list(recording.remarks)
        if not pieces:
            return Output("", 0.0, warning="; ".join(dict.fromkeys(told)))
        shares = np.array([seconds for seconds, _ in pieces])
        each = np.stack([np.exp(log_probs_1V[0].astype(np.float64)) for _, log_probs_1V in pieces])
        mean_V = shares @ each / shares.sum()
        log_probs_1V = np.log(np.maximum(mean_V, 1e-30))[None].astype(np.float32)
        output = self._output([], log_probs_1V, nbest)
        if self.calibration is not None and (why := self.calibration.warning(output.score)):
            told.append(f"{recording.source}: {why}")
        return replace(
            output,
            confidence=output.score,
            attention=map_LHTS if len(pieces) == 1 else None,
            warning="; ".join(dict.fromkeys(told)),
        )
