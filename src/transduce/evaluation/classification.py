"""Classification metrics: accuracy, F1, confusion matrix, calibration; known and unknown words;
entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from transduce.data.text.entities import entities
from transduce.data.text.unicode import composed
from transduce.errors import DataError, RecipeError
from transduce.evaluation.bootstrap import Statistics
from transduce.evaluation.metrics import Details, Measured, Metric, metric_of, percentage

BINS = 15  # bins of the reliability diagram, as in Guo et al. 2017
MAX_CONFUSED = 50  # with more labels than this there is no confusion matrix
# with more labels than this there is no interval of F1: the rows of items would be too wide
MAX_RESAMPLED = 200


@dataclass(frozen=True)
class Labelled:
    """Predicted and reference labels of one item."""

    predicted: Sequence[str]
    reference: Sequence[str]
    sure: Sequence[float] = ()
    """The probability of each predicted label."""
    known: Sequence[bool] = field(default=())
    """For each word, whether it occurs in the training data."""

    @property
    def hits(self) -> list[bool]:
        """Correctness of each position; a missing label on either side counts as wrong."""
        return [
            predicted == reference
            for predicted, reference in zip_longest(self.predicted, self.reference)
        ]


def measure_labels(
    names: Sequence[str], items: Sequence[Labelled], bootstrap: int = 1000, seed: int = 1
) -> dict[str, Metric]:
    """Measure labels by each of the named metrics, with bootstrap intervals as in `measure`.

    - accuracy: percentage of labels that are correct; `details` has the confusion matrix, with
      reference labels as rows and predicted labels as columns.
    - known, unknown: the same for words that occur in the training data, and for those that do not;
      left out if there are none of them.
    - exact: percentage of items with every label correct.
    - f1: macro F1, the mean over labels of 2PR / (P + R), however rare they are; precision, recall
      and F1 of each label are in `details`.
    - entity_f1: 2PR / (P + R) over all entities that tags such as B-PER and I-PER mark: right are
      those whose first and last word and kind are, as in the shared tasks of CoNLL; precision,
      recall and F1 of each kind are in `details`. Without entities on either side it is 0.
    - calibration: expected calibration error (ECE) in per cent, Σ over bins of |accuracy −
      confidence|, weighted by their size (Guo et al. 2017, https://arxiv.org/abs/1706.04599);
      `details` has the reliability of each bin.
    """
    found = {}
    for name, rows in label_rows(names, items).items():
        draws = bootstrap if len(rows.statistics) == len(items) else 0
        found[name] = metric_of(name, rows, draws, seed)
    return found


def label_rows(names: Sequence[str], items: Sequence[Labelled]) -> dict[str, Measured]:
    """What each of the named metrics counts in every item; see `measure_labels`."""
    if not items:
        raise DataError("There is nothing to measure: there are no items.")
    items = [_composed(item) for item in items]
    found = {}
    for name in dict.fromkeys(names):
        if name not in _MEASURES:
            raise RecipeError(f"{name} does not measure labels; there are {', '.join(_MEASURES)}")
        rows = _MEASURES[name](items)
        if name not in ("known", "unknown") or rows.details["positions"]:
            found[name] = rows
    return found


def _composed(item: Labelled) -> Labelled:
    """In Unicode NFC, as texts are compared."""
    if all(label.isascii() for label in (*item.predicted, *item.reference)):
        return item
    predicted, reference = (
        [composed(label) for label in labels] for labels in (item.predicted, item.reference)
    )
    return replace(item, predicted=predicted, reference=reference)


def _accuracy(items: Sequence[Labelled]) -> Measured:
    statistics = np.array([[sum(item.hits), len(item.hits)] for item in items], np.float64)
    details: Details = _counts(statistics)
    pairs = Counter(
        pair for item in items for pair in zip(item.reference, item.predicted, strict=False)
    )
    labels = _labels(items)
    if len(labels) <= MAX_CONFUSED:
        details["labels"] = labels
        details["confusion"] = [
            [pairs[reference, predicted] for predicted in labels] for reference in labels
        ]
    return Measured(statistics, percentage, details)


def _of_words(known: bool) -> Callable[[Sequence[Labelled]], Measured]:
    def measured(items: Sequence[Labelled]) -> Measured:
        rows = []
        for item in items:
            hits = [h for h, k in zip(item.hits, item.known, strict=False) if k == known]
            rows.append([sum(hits), len(hits)])
        statistics = np.array(rows, np.float64)
        return Measured(statistics, percentage, _counts(statistics))

    return measured


def _exact(items: Sequence[Labelled]) -> Measured:
    statistics = np.array([[all(item.hits), 1] for item in items], np.float64)
    return Measured(statistics, percentage, _counts(statistics))


def _counts(statistics: Statistics) -> Details:
    correct, positions = (int(count) for count in statistics.sum(axis=0))
    return {"correct": correct, "positions": positions}


def _f1(items: Sequence[Labelled]) -> Measured:
    labels = _labels(items)
    place = {label: number for number, label in enumerate(labels)}
    # One row for each item: for each label, how often it was correct, predicted and in the
    # reference.
    rows = len(items) if len(labels) <= MAX_RESAMPLED else 1
    statistics = np.zeros((rows, 3 * len(labels)))
    for number, item in enumerate(items):
        row = statistics[number % rows].reshape(3, -1)
        for hit, label in zip(item.hits, item.reference, strict=False):
            row[0, place[label]] += hit
        for which, side in ((1, item.predicted), (2, item.reference)):
            for label in side:
                row[which, place[label]] += 1

    def score(total: Statistics) -> float:
        hit, predicted, reference = total.reshape(3, -1)
        there = predicted + reference > 0
        return float(100.0 * (2 * hit[there] / (predicted + reference)[there]).mean())

    of_labels = {}
    for label, counts in zip(labels, statistics.sum(axis=0).reshape(3, -1).T, strict=True):
        of_labels[label] = {**_precision_and_recall(*counts), "count": int(counts[2])}
    return Measured(statistics, score, {"labels": of_labels})


def _entity_f1(items: Sequence[Labelled]) -> Measured:
    counts: Counter[tuple[str, str]] = Counter()
    rows = []
    for item in items:
        predicted, reference = entities(item.predicted), entities(item.reference)
        hit = predicted & reference
        rows.append([len(hit), len(predicted), len(reference)])
        for name, found in (("hit", hit), ("predicted", predicted), ("reference", reference)):
            counts.update((name, entity.kind) for entity in found)
    kinds = sorted({kind for _, kind in counts}, key=lambda one: (-counts["reference", one], one))
    of_kinds = {}
    for kind in kinds:
        of_kind = [counts[name, kind] for name in ("hit", "predicted", "reference")]
        of_kinds[kind] = {**_precision_and_recall(*of_kind), "count": of_kind[2]}
    statistics = np.array(rows, np.float64)
    details = {**_precision_and_recall(*statistics.sum(axis=0)), "labels": of_kinds}
    return Measured(statistics, lambda total: _precision_and_recall(*total)["f1"], details)


def _precision_and_recall(hit: float, predicted: float, reference: float) -> dict[str, float]:
    """With F1, in per cent; 0 where there is nothing."""
    both = predicted + reference
    return {
        "precision": 100.0 * float(hit / predicted) if predicted else 0.0,
        "recall": 100.0 * float(hit / reference) if reference else 0.0,
        "f1": 100.0 * float(2 * hit / both) if both else 0.0,
    }


def _calibration(items: Sequence[Labelled]) -> Measured:
    # One row for each item: for each bin, count, confidence and correct predictions.
    statistics = np.zeros((len(items), 3 * BINS))
    for number, item in enumerate(items):
        row = statistics[number].reshape(3, BINS)
        for sure, hit in zip(item.sure, item.hits, strict=False):
            place = min(max(int(np.ceil(sure * BINS)) - 1, 0), BINS - 1)
            row[:, place] += (1.0, sure, hit)

    def score(total: Statistics) -> float:
        count, sure, hit = total.reshape(3, BINS)
        return float(100.0 * np.abs(hit - sure).sum() / max(count.sum(), 1.0))

    table = [
        {
            "from": place / BINS,
            "to": (place + 1) / BINS,
            "count": int(count),
            "sure": 100.0 * float(sure / count),
            "right": 100.0 * float(hit / count),
        }
        for place, (count, sure, hit) in enumerate(statistics.sum(axis=0).reshape(3, BINS).T)
        if count
    ]
    return Measured(statistics, score, {"bins": table})


def _labels(items: Sequence[Labelled]) -> list[str]:
    """All labels of references and predictions, the most frequent first."""
    reference = Counter(label for item in items for label in item.reference)
    predicted = {label for item in items for label in item.predicted}
    return sorted(reference.keys() | predicted, key=lambda label: (-reference[label], label))


_MEASURES: dict[str, Callable[[Sequence[Labelled]], Measured]] = {
    "accuracy": _accuracy,
    "known": _of_words(True),
    "unknown": _of_words(False),
    "exact": _exact,
    "f1": _f1,
    "entity_f1": _entity_f1,
    "calibration": _calibration,
}
