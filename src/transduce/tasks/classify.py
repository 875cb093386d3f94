"""The task classify: text classification."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from transduce.data.text.tags import without_blank
from transduce.data.tokens.tokenizer import SPECIALS, Tokens
from transduce.data.tokens.words import Ids
from transduce.decoding.encode import Encoding, encoder_states, pad_states
from transduce.decoding.output import Output
from transduce.decoding.readings import Reading, ReadRequest
from transduce.decoding.score.labels import (
    LogProbabilities,
    label_probabilities,
    pooling_weights,
    read_labelled,
)
from transduce.decoding.source_limit import (
    MIN_LABEL,
    encode_truncated,
    shortened,
    truncation_warnings,
    unknown_warning,
)
from transduce.errors import ModelError
from transduce.garbage import no_garbage_collection
from transduce.models import LabelNetwork
from transduce.models.build import build_label_network
from transduce.recipe import Recipe
from transduce.recipe.model import max_length_of
from transduce.tasks.model import Model, check_sources, inference


class LabelModel(Model):
    """Base of models that give labels, `Classifier` and `Tagger`: label n is token n + 4."""

    network: LabelNetwork
    pooled: ClassVar[bool]
    """Whether a source has one label, and not one for each token."""

    @classmethod
    def build(cls, recipe: Recipe, source_tokens: Tokens, target_tokens: Tokens) -> LabelNetwork:
        labels = len(target_tokens) - len(SPECIALS)
        return build_label_network(recipe.model, source_tokens.names(), labels, pooled=cls.pooled)

    def _read(self, asked: ReadRequest) -> list[Reading]:
        return read_labelled(self.network, asked.names, asked.sources, asked.top, asked.context)

    def _pieces_of_head(
        self, numbers: list[int], source: str = "", ids: Sequence[int] = ()
    ) -> list[str]:
        return self.target_tokens.pieces(number + len(SPECIALS) for number in numbers)


class Classifier(LabelModel, task="classify"):
    """A text classifier: an encoder, pooling and an output layer.

    `transduce.load` returns it for `task: classify`.

        model = transduce.load("runs/imdb-pooled")
        model("A film to fall in love with.")       # 'pos'
        model.run(reviews, nbest=2)                 # .score and .probabilities: confidence
    """

    pooled = True

    @no_garbage_collection()
    def run(
        self,
        sources: Sequence[str],
        *,
        tags: Sequence[str] = (),
        nbest: int = 1,
        attention: bool = False,
        **others: Any,
    ) -> list[Output]:
        """One output per source, in order: the label as text, its probability as score.

        tags: of all sources; each may also have its own before it, as in "<fre> bonjour".

        With nbest above 1, that many labels are the output's alternatives, the most likely first.
        attention: also the pooling weight of each word, where the model has attention pooling.
        Sources are truncated where training truncated them (data.overlong). Empty sources give
        empty outputs.
        """
        self.reject_settings(others, known=("tags", "nbest", "attention"))
        if nbest < 1:
            raise ModelError(f"nbest is {nbest}; it must be 1 or more")
        sources = self.tagged(sources, tags)
        encoded, warnings = self._encode(sources)
        filled = [index for index, ids in enumerate(encoded) if len(ids)]
        rows = [encoded[index] for index in filled]
        with inference(self):
            found = label_probabilities(self.network, rows)
            weights = pooling_weights(self.network, rows) if attention else None
        outputs = [Output("", 0.0)] * len(sources)
        made = self._outputs(self.source_tokens.pieces_of_rows(rows), found, nbest)
        for place, (index, output) in enumerate(zip(filled, made, strict=True)):
            outputs[index] = output
            output.attention = None if weights is None else weights[place][None, None, None]
            output.warning = warnings.get(index) or unknown_warning(encoded[index])
        if self._lenses:
            self._record([(sources[i], encoded[i].tolist(), outputs[i]) for i in filled])
        return outputs

    def _encode(self, sources: list[str]) -> tuple[list[Ids], dict[int, str]]:
        """The ids of sources; truncation as in training gives no warning."""
        data, capacity = self.recipe.data, max_length_of(self.recipe.model.encoder)
        given = without_blank(sources)
        rows, lengths = encode_truncated(
            self.source_tokens.encode_arrays, given, self.recipe, capacity, MIN_LABEL
        )
        if data.overlong == "truncate" and data.max_length <= capacity:
            return shortened(rows, data.max_length), {}
        return rows, truncation_warnings(lengths)

    def encode(self, sources: Sequence[str]) -> Encoding:
        """The encoder's states of each source, with lengths and mask; they hold no gradients."""
        rows, _ = self._encode(check_sources(sources))
        with inference(self):
            states = encoder_states(self.network.encode, rows, self.device, ends=False)
        tokens = self.source_tokens.pieces_of_rows(rows)
        return pad_states(states, tokens, self.recipe.model.width)

    def _outputs(
        self, sources: list[list[str]], found: list[LogProbabilities], nbest: int
    ) -> Iterator[Output]:
        """The most likely labels of each source, of which the tokens are given."""
        names = self.target_tokens.pieces(range(len(SPECIALS), len(self.target_tokens)))
        log_probs_BV = np.concatenate([np.zeros((0, len(names)), np.float32), *found])
        best_BN = np.argsort(-log_probs_BV, axis=1, kind="stable")[:, :nbest]
        values_BN = np.take_along_axis(log_probs_BV, best_BN, axis=1)
        for source, *best in zip(sources, best_BN.tolist(), values_BN.tolist(), strict=True):
            outputs = []
            for label, log_probability in zip(*best, strict=True):
                probability = math.exp(log_probability)
                output = Output(names[label], probability, [names[label]], source, log_probability)
                output.probabilities = [probability]
                outputs.append(output)
            yield replace(outputs[0], alternatives=outputs) if nbest > 1 else outputs[0]
