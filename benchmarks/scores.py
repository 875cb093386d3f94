"""Scores that a published figure needs beside the toolkit's own; the runner calls them by name.

Each is of a model on a split, and is given what `evaluate` made of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from transduce.data.text.pairs import read_pairs
from transduce.evaluation.metrics import Metric, interval
from transduce.evaluation.perplexity import in_blocks, text_to_score
from transduce.evaluation.results import Evaluation


def after_one(model: Any, split: str, _: Evaluation) -> Metric:
    """nanoGPT's loss, nats a token: blocks of training's size, but for the first token of each.

    There a block is predicted from 1, 2, ... tokens before; our blocks begin with nothing.
    """
    data = model.recipe.data
    given = text_to_score(read_pairs(getattr(data, split), data.folder), model.target_tokens, True)
    blocks = in_blocks(given, model.window)
    worth = np.concatenate([found[1:] for found in model.log_probabilities(blocks)])
    return Metric("after_one", float(-worth.mean()), None, None, False, {"tokens": len(worth)})


def tokenised_bleu(model: Any, split: str, evaluation: Evaluation, bootstrap: int = 1000) -> Metric:
    """BLEU of text that is tokenised already, cut at spaces: what multi-bleu.perl says."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(tokenize="none", force=True)
    hypotheses = [output.text for output in evaluation.outputs]
    streams = [[item.references[0] for item in evaluation.items]]
    rows = np.array(metric._extract_corpus_statistics(hypotheses, streams), np.float64)

    def score(total: np.ndarray) -> float:
        return float(metric._compute_score_from_stats(total.tolist()).score)

    low, high = interval(rows, score, bootstrap, 1)
    details = {"signature": str(metric.get_signature())}
    return Metric("tokenised_bleu", score(rows.sum(axis=0)), low, high, True, details)
