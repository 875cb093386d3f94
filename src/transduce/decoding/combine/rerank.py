"""Minimum Bayes risk decoding, and reranking of an n-best list with a second model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from transduce.data.tokens.bleu_tokenizer import DEFAULT, make_bleu
from transduce.decoding.search.hypothesis import Hypothesis, penalty


def minimum_bayes_risk(
    hypotheses: Sequence[Hypothesis],
    texts: Sequence[str],
    metric: str,
    tokenizer: str = DEFAULT,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Hypothesis]:
    """Samples sorted by expected utility, which becomes their score; duplicates are dropped. None
    when they are no longer needed: `cancelled` is asked for each sample."""
    utilities = expected_utility(texts, metric, tokenizer, cancelled)
    if not utilities:
        return []
    found: dict[str, Hypothesis] = {}
    for text, utility, hypothesis in zip(texts, utilities, hypotheses, strict=True):
        found.setdefault(text, replace(hypothesis, score=utility))
    return sorted(found.values(), key=lambda h: (-h.score, -h.log_probability))


def expected_utility(
    texts: Sequence[str],
    metric: str,
    tokenizer: str = DEFAULT,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[float]:
    """For each text its mean chrF or BLEU, from 0 to 100, with every text as the reference; nothing
    once it is cancelled.

    Minimum Bayes risk decoding, Eikema and Aziz 2020,
    https://aclanthology.org/2020.coling-main.398: the samples estimate the model's distribution,
    so this estimates the expected utility. BLEU is sacrebleu's sentence BLEU.
    """
    from sacrebleu.metrics.chrf import CHRF

    measure: Any = CHRF() if metric == "chrf" else make_bleu(tokenizer, effective_order=True)
    counts = Counter(texts)  # equal samples are compared once
    utility = {}
    for text in counts:
        if cancelled():
            return []
        utility[text] = sum(
            times * _utility(measure, text, other) for other, times in counts.items()
        )
    return [utility[text] / len(texts) for text in texts]


def _utility(measure: Any, text: str, reference: str) -> float:
    if not text.strip() or not reference.strip():  # sacrebleu gives 0 for two empty texts
        return 100.0 if text.split() == reference.split() else 0.0
    return float(measure.sentence_score(text, [reference]).score)


def reranked(
    hypotheses: Sequence[Hypothesis], others: Sequence[float], weight: float, power: float
) -> list[Hypothesis]:
    """Rerank by (log-probability + weight x that of a second model) / length penalty."""
    rescored = [
        replace(h, score=(h.log_probability + weight * other) / _penalty(h, power))
        for h, other in zip(hypotheses, others, strict=True)
    ]
    return sorted(rescored, key=lambda h: -h.score)


def _penalty(hypothesis: Hypothesis, power: float) -> float:
    return float(penalty(len(hypothesis.tokens) + 1, power))
