"""Word alignments of a model: the head of attention that aligns best, found by itself.

Attention to the source at the step that writes a word, or at the step that reads it: the latter is
often better (Chen et al. 2020, https://arxiv.org/abs/2004.14837). Which layer and head, differs
from model to model. With gold alignments it is the one of the lowest alignment error rate; with a
model that translates back, the one that agrees best with one of its heads; else the one that agrees
best with itself, read from target to source and from source to target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce.data.tokens.tokenizer import Tokens
from transduce.decoding.run_lens import LensEntry
from transduce.decoding.speech.timing import words_of
from transduce.decoding.word_alignment import word_attention
from transduce.errors import ModelError
from transduce.inspection.analysis.alignment import (
    Gold,
    Link,
    agreement,
    alignment_error_rate,
    links_back,
    links_of,
    symmetrize,
    to_pharaoh,
)
from transduce.inspection.analysis.attention import attention_confidence, diagonality
from transduce.inspection.page import document, framed, section, table
from transduce.models.lens import is_to_source, short_name
from transduce.tasks.transduce import Transducer

AT_ONCE = 256  # pairs whose attention is in memory
SHOWN = 20  # heads and pairs that a notebook shows


class Head(NamedTuple):
    """A head of attention to the source, and when it is asked about a word."""

    part: str
    head: int
    when: str
    """writing: at the step that predicts a word; reading: at the step after, which reads it."""


@dataclass(frozen=True)
class HeadScore:
    """How well a head aligns."""

    head: Head
    agreement: float
    """F1 of its links and those of its other direction, or of the other model's best head."""
    confidence: float
    """The mean of its largest weights."""
    diagonality: float
    error_rate: float | None = None
    """AER, where there is gold."""


@dataclass(frozen=True)
class Alignments:
    """Links of each pair, and how they were found."""

    links: list[set[Link]]
    scores: list[HeadScore]
    """Of all heads, the best first; the links are the first one's."""

    @property
    def best(self) -> HeadScore:
        return self.scores[0]

    def to_pharaoh(self) -> list[str]:
        """A line for each pair: `0-0 1-2`."""
        return [to_pharaoh(links) for links in self.links]

    def _repr_html_(self) -> str:
        rows: list[list[object]] = []
        for one in self.scores[:SHOWN]:
            rate = "" if one.error_rate is None else f"{one.error_rate:.3f}"
            rows.append([f"{short_name(one.head.part)}, head {one.head.head}", one.head.when])
            rows[-1] += [f"{one.agreement:.3f}", rate]
        heads = table(["head", "when", "agreement", "alignment error rate"], rows, text=2)
        links = [[number, line] for number, line in enumerate(self.to_pharaoh()[:SHOWN], start=1)]
        lead = f"{len(self.links):,} pairs; the links are those of the first head."
        parts = [section("Heads", heads), section("Links", table(["pair", "links"], links, text=2))]
        return framed(document("Word alignments", lead, parts))


def align_words(
    model: Transducer,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    gold: Sequence[Gold] | None = None,
    reverse: Transducer | None = None,
    head: Head | None = None,
) -> Alignments:
    """Align the words of sources and targets by attention.

    Words are what the tokens are parts of; of phones and whole words, each token. gold: what the
    best head is chosen by. reverse: a model from targets to sources; links of the two are joined by
    grow-diag. head: one that was found before. Raises ModelError where the model has no attention
    to the source.
    """
    if gold is not None and len(gold) != len(sources):
        raise ModelError(f"there are {len(sources)} pairs, but {len(gold)} gold alignments")
    found = _Found.of(model, sources, targets)
    back = None if reverse is None else _Found.of(reverse, targets, sources).turned()
    if head is not None and head not in found.links:
        raise ModelError(f"there is no head {head.head} of {head.part}, {head.when}")
    scores = [found.score(one, gold, back) for one in (found.links if head is None else [head])]
    scores.sort(key=lambda one: _order(one, gold is not None))
    links = found.links[scores[0].head]
    if back is not None:
        _, theirs = back.most_like(links)
        links = [symmetrize(a, b) for a, b in zip(links, theirs, strict=True)]
    return Alignments(links, scores)


def best_heads(
    model: Transducer,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    gold: Sequence[Gold] | None = None,
    reverse: Transducer | None = None,
) -> list[HeadScore]:
    """How well each head of a model aligns, the best first."""
    return align_words(model, sources, targets, gold=gold, reverse=reverse).scores


@dataclass
class _Found:
    """What every head says of every pair."""

    links: dict[Head, list[set[Link]]]
    back: dict[Head, list[set[Link]]]
    """The same, read from source to target."""
    sums: dict[Head, list[float]]
    """Confidence and diagonality, and of how many pairs."""

    @classmethod
    def of(cls, model: Transducer, sources: Sequence[str], targets: Sequence[str]) -> _Found:
        names = [part.name for part in model.parts() if part.kind == "attention"]
        names = [name for name in names if is_to_source(name)]
        if not names:
            raise ModelError("the model has no attention to its source, and aligns nothing")
        if model.recipe.audio is not None:
            raise ModelError("words of audio have times: run with times=True")
        found = cls({}, {}, {})
        for start in range(0, len(sources), AT_ONCE):
            some = slice(start, start + AT_ONCE)
            with model.lens(*names) as lens:
                model.score(sources[some], targets[some])
            for entry in lens:
                found.note(entry, model.source_tokens, model.target_tokens)
        return found

    def note(self, entry: LensEntry, source_tokens: Tokens, target_tokens: Tokens) -> None:
        source_words = words_of(source_tokens, entry.named.source_ids)
        target_words = words_of(target_tokens, entry.output.ids)
        for head, weights_TS in _heads(entry):
            words_TS = word_attention(weights_TS[:-1], source_words, target_words)
            self.links.setdefault(head, []).append(links_of(words_TS))
            self.back.setdefault(head, []).append(links_back(words_TS))
            sums = self.sums.setdefault(head, [0.0, 0.0, 0.0])
            if words_TS.size:
                sums[0] += float(attention_confidence(words_TS))
                sums[1] += float(diagonality(words_TS))
                sums[2] += 1

    def turned(self) -> _Found:
        """Of a model that translates back: its links with the source first."""
        return _Found(_turned(self.links), _turned(self.back), self.sums)

    def score(self, head: Head, gold: Sequence[Gold] | None, back: _Found | None) -> HeadScore:
        own = self.links[head]
        agreed = _f1(own, self.back[head]) if back is None else back.most_like(own)[0]
        confidence, diagonal, count = self.sums[head]
        return HeadScore(
            head,
            agreed,
            confidence / max(count, 1),
            diagonal / max(count, 1),
            None if gold is None else alignment_error_rate(own, gold),
        )

    def most_like(self, links: Sequence[set[Link]]) -> tuple[float, list[set[Link]]]:
        """The links of the head that agrees best with these, and how far it does."""
        every = [(_f1(links, own), own) for own in self.links.values()]
        return max(every, key=lambda one: one[0])


def _turned(links: dict[Head, list[set[Link]]]) -> dict[Head, list[set[Link]]]:
    return {head: [{(t, s) for s, t in one} for one in pairs] for head, pairs in links.items()}


def _heads(entry: LensEntry) -> Iterator[tuple[Head, NDArray[np.float32]]]:
    """Each head's attention [target, source] for the words, END's row last."""
    for name, weights_HTS in entry.weights.items():
        for number, weights_TS in enumerate(weights_HTS):
            yield Head(name, number, "writing"), weights_TS
            yield Head(name, number, "reading"), np.concatenate([weights_TS[1:], weights_TS[-1:]])


def _f1(some: Sequence[set[Link]], others: Sequence[set[Link]]) -> float:
    counts = [agreement(one, other) for one, other in zip(some, others, strict=True)]
    return sum(same for same, _ in counts) / max(1, sum(size for _, size in counts))


def _order(score: HeadScore, by_gold: bool) -> tuple[float, float]:
    """The best first; of equals the surer."""
    first = score.error_rate if by_gold and score.error_rate is not None else -score.agreement
    return first, -score.confidence
