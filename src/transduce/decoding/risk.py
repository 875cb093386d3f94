"""Minimum-Bayes-risk choice: of many samples the one that is most like all the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any


def expected_utility(texts: Sequence[str], metric: str) -> list[float]:
    """For each text its mean chrF or BLEU, from 0 to 100, with all texts (itself too) as references.

    Eikema and Aziz 2020, https://aclanthology.org/2020.coling-main.398: samples stand for what the
    model believes, so this is the utility that the model expects of each. BLEU is smoothed as
    sacrebleu does for single sentences.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    measure: Any = CHRF() if metric == "chrf" else BLEU(effective_order=True, force=True)
    counts = Counter(texts)  # what was drawn several times is compared once
    utility = {
        text: sum(
            count * _utility(measure, text, reference) for reference, count in counts.items()
        )
        for text in counts
    }
    return [utility[text] / len(texts) for text in texts]


def _utility(measure: Any, text: str, reference: str) -> float:
    if not text.strip() or not reference.strip():  # sacrebleu gives nothing for nothing
        return 100.0 if text.split() == reference.split() else 0.0
    return float(measure.sentence_score(text, [reference]).score)
