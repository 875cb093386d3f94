"""Scores that a published figure needs beside the toolkit's own; the runner calls them by name.

Each is of a model on a split, and is given what `evaluate` made of it.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from transduce.data.text.pairs import read_pairs
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import Metric, interval
from transduce.evaluation.perplexity import in_blocks, text_to_score
from transduce.evaluation.results import Evaluation
from transduce.evaluation.score import Answer, score


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


NUMBER = 10  # recordings in a row: a telephone number
PAUSES = (0.1, 0.4)  # seconds, shortest and longest


def telephone_wer(model: Any, _: str, evaluation: Evaluation) -> Metric:
    """Word error rate of the split's recordings, ten of one speaker in a row."""
    with tempfile.TemporaryDirectory() as folder:
        joined = telephone_numbers(evaluation.items, Path(folder))
        outputs = model.run([item.source for item in joined])
    found = score(model, joined, [Answer.of(output) for output in outputs], ["wer"])["wer"]
    right = sum(out.text == one.references[0] for out, one in zip(outputs, joined, strict=True))
    details = {**found.details, "numbers": len(joined), "right": right}
    return Metric("telephone_wer", found.value, found.low, found.high, False, details)


def telephone_numbers(items: list[Item], folder: Path) -> list[Item]:
    """Ten recordings of one speaker in a row, with digital silence between them, written to the
    folder; each recording is in one number."""
    import soundfile

    draw = random.Random(1)
    of_speaker: dict[str, list[Item]] = {}
    for item in items:
        of_speaker.setdefault(item.group, []).append(item)
    numbers = []
    for some in of_speaker.values():
        draw.shuffle(some)
        numbers += [some[n : n + NUMBER] for n in range(0, len(some) - NUMBER + 1, NUMBER)]
    joined = []
    for place, number in enumerate(numbers):
        path = folder / f"{place}.wav"
        soundfile.write(path, *in_a_row([item.source for item in number], draw))
        joined.append(Item(str(path), [" ".join(item.references[0] for item in number)]))
    return joined


def in_a_row(paths: list[str], draw: random.Random) -> tuple[np.ndarray, int]:
    """Recordings of one sample rate with a pause between each two, and that rate."""
    import soundfile

    rate, parts = 0, []
    for path in paths:
        samples, rate = soundfile.read(path)
        parts += [samples, np.zeros(round(draw.uniform(*PAUSES) * rate))]
    return np.concatenate(parts[:-1]), rate
