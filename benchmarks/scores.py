"""Scores that a published figure needs beside the toolkit's own; the runner calls them by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transduce.evaluation.metrics import Metric, interval


def tokenised_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], bootstrap: int = 1000
) -> Metric:
    """BLEU of text that is tokenised already, cut at spaces: what multi-bleu.perl says."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", force=True)
    streams = [[accepted[0] for accepted in references]]
    rows = np.array(metric._extract_corpus_statistics(list(hypotheses), streams), np.float64)

    def score(total: np.ndarray) -> float:
        return float(metric._compute_score_from_stats(total.tolist()).score)

    low, high = interval(rows, score, bootstrap, 1)
    details = {"signature": str(metric.get_signature())}
    return Metric("tokenised_bleu", score(rows.sum(axis=0)), low, high, True, details)
