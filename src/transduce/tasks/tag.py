"""The task tag: sequence labelling, such as part-of-speech tagging: a label for each word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from transduce.data.cache.tokenised import Encoded
from transduce.data.text.conll import COLUMNS
from transduce.data.tokens.tokenizer import SPECIALS, UNKNOWN
from transduce.decoding.encode import Encoding, encoder_states, pad_states
from transduce.decoding.output import Output
from transduce.decoding.score.labels import LogProbabilities, label_probabilities
from transduce.decoding.source_limit import (
    MIN_LABEL,
    limit_reason,
    max_source_tokens,
    truncation_warnings,
)
from transduce.models.call_context import CallContext
from transduce.recipe import Columns
from transduce.recipe.model import max_length_of
from transduce.tasks.classify import LabelModel
from transduce.tasks.model import check_sources, inference


class Tagger(LabelModel, task="tag"):
    """A tagger: an encoder and an output layer over every word.

    `transduce.load` returns it for `task: tag`.

        model = transduce.load("runs/ewt-tagger")
        model("The dog runs .")                     # 'DET NOUN VERB PUNCT'
        model.run(sentences)                        # .tokens and .probabilities of each word
    """

    pooled = False

    def run(self, sources: Sequence[str], **others: Any) -> list[Output]:
        """One output per source, in order: a tag for each word, separated by spaces.

        Words are separated by white space. Empty sources give empty outputs.
        """
        self.reject_settings(others, known=())
        texts = [source.split() for source in check_sources(sources)]
        capacity = max_length_of(self.recipe.model.encoder)
        longest = min(max_source_tokens(self.recipe, MIN_LABEL), capacity)
        warnings = truncation_warnings(
            {
                index: f"has {len(words)} tokens; {limit_reason(self.recipe, longest, capacity)}"
                for index, words in enumerate(texts)
                if len(words) > longest
            }
        )
        rows, context = self._rows([words[:longest] for words in texts])
        filled = [index for index, row in enumerate(rows) if row]
        with inference(self):
            found = label_probabilities(self.network, [rows[index] for index in filled], context)
        outputs = [Output("", 0.0)] * len(texts)
        for index, log_probs_TV in zip(filled, found, strict=True):
            outputs[index] = self._output(texts[index], log_probs_TV, warnings.get(index, ""))
        if self._lenses:
            self._record([(sources[i], rows[i], outputs[i]) for i in filled], context)
        return outputs

    def encode(self, sources: Sequence[str]) -> Encoding:
        """The encoder's states of each word, with lengths and mask; they hold no gradients."""
        texts = [source.split() for source in check_sources(sources)]
        rows, context = self._rows(texts)
        with inference(self):
            states = encoder_states(
                self.network.encode, rows, self.device, ends=False, context=context
            )
        return pad_states(states, texts, self.recipe.model.width)

    def prepare_corpus(self, corpus: Encoded, sources: Sequence[str]) -> Encoded:
        front = self.network.front
        if front.letters is None:
            return corpus
        ids, new = corpus.source_ids.copy(), dict[str, int]()
        for row, source in enumerate(sources):
            row_ids = ids[corpus.source_offsets[row] : corpus.source_offsets[row + 1]]
            words = source.split()
            for place in np.flatnonzero(row_ids == UNKNOWN).tolist():
                if place < len(words):
                    word = self.source_tokens.normalized(words[place])
                    row_ids[place] = new.setdefault(word, front.spelled + len(new))
        front.add(list(new))
        return replace(corpus, source_ids=ids)

    @property
    def column(self) -> str:
        """The CoNLL-U column of its tags: the one that it was trained on, or upos."""
        corpus = self.recipe.data.train
        if isinstance(corpus, Columns) and corpus.target in COLUMNS:
            return str(corpus.target)
        return "upos"

    def show(self, output: Output) -> str:
        """word/TAG word/TAG; the tag follows the last slash."""
        pairs = zip(output.source_tokens, output.tokens, strict=False)
        return " ".join(f"{word}/{tag}" for word, tag in pairs)

    def _rows(self, texts: list[list[str]]) -> tuple[list[list[int]], CallContext]:
        """The ids of words; with character features, unknown words get ids of this call alone."""
        words = list(dict.fromkeys(word for text in texts for word in text))
        ids = {
            word: next(iter(found), UNKNOWN)
            for word, found in zip(words, self.source_tokens.encode_batch(words), strict=True)
        }
        new: list[str] = []
        if self.network.front.letters is not None:
            for word in words:
                if ids[word] == UNKNOWN:
                    ids[word] = self.network.front.spelled + len(new)
                    new.append(self.source_tokens.normalized(word))
        return [[ids[word] for word in text] for text in texts], CallContext(words=tuple(new))

    def _output(self, words: list[str], log_probs_TV: LogProbabilities, warning: str) -> Output:
        best_T = log_probs_TV.argmax(axis=1)
        log_probs = [float(row[label]) for row, label in zip(log_probs_TV, best_T, strict=True)]
        tags = self.target_tokens.pieces(best_T + len(SPECIALS))
        total = math.fsum(log_probs)
        return Output(
            text=" ".join(tags),
            score=total,
            tokens=tags,
            source_tokens=words,
            log_probability=total,
            probabilities=[math.exp(value) for value in log_probs],
            warning=warning,
        )
