"""How right labels are: accuracy, F1, confusion, calibration; of words, known and unknown apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np

from transduce.data.text.unicode import composed
from transduce.errors import DataError, RecipeError
from transduce.evaluation.bootstrap import Statistics
from transduce.evaluation.metrics import Details, Measured, Metric, metric_of, share

BINS = 15  # of the probabilities, as in Guo et al. 2017
MOST_CONFUSED = 50  # with more labels than these there is no matrix
MOST_RESAMPLED = 200  # and with more than these no interval of F1: a row an item grows too wide


@dataclass(frozen=True)
class Labelled:
    """The labels of one item."""

    said: Sequence[str]
    right: Sequence[str]
    sure: Sequence[float] = ()
    """The probability of each label that was said."""
    known: Sequence[bool] = field(default=())
    """Of each word, whether training had it."""

    @property
    def hits(self) -> list[bool]:
        """Position by position; where one side has nothing, the other is wrong."""
        return [said == right for said, right in zip_longest(self.said, self.right)]


def measure_labels(
    names: Sequence[str], items: Sequence[Labelled], bootstrap: int = 1000, seed: int = 1
) -> dict[str, Metric]:
    """Measure labels by each of the named metrics, with intervals as `measure` has them.

    - accuracy: per cent of labels that are right; `details` has the confusion matrix, its rows the
      right labels and its columns those said.
    - known, unknown: the same of words that training had, and of those that it had not; left out
      where there are none of them.
    - exact: per cent of items with every label right.
    - f1: the mean over labels of 2PR / (P + R), each counting alike however rare; P, R and F1 of
      each are in `details`.
    - calibration: by how many per cent the probability of what was said is off, on average: Σ over
      bins of |right − sure| (Guo et al. 2017, https://arxiv.org/abs/1706.04599); `details` has the
      reliability of each bin.
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
    """In one Unicode form, as texts are compared."""
    said, right = ([composed(label) for label in labels] for labels in (item.said, item.right))
    return replace(item, said=said, right=right)


def _accuracy(items: Sequence[Labelled]) -> Measured:
    statistics = np.array([[sum(item.hits), len(item.hits)] for item in items], np.float64)
    details: Details = _counts(statistics)
    pairs = Counter(pair for item in items for pair in zip(item.right, item.said, strict=False))
    labels = _labels(items)
    if len(labels) <= MOST_CONFUSED:
        details["labels"] = labels
        details["confusion"] = [[pairs[right, said] for said in labels] for right in labels]
    return Measured(statistics, share, details)


def _of_words(known: bool) -> Callable[[Sequence[Labelled]], Measured]:
    def measured(items: Sequence[Labelled]) -> Measured:
        rows = []
        for item in items:
            hits = [h for h, k in zip(item.hits, item.known, strict=False) if k == known]
            rows.append([sum(hits), len(hits)])
        statistics = np.array(rows, np.float64)
        return Measured(statistics, share, _counts(statistics))

    return measured


def _exact(items: Sequence[Labelled]) -> Measured:
    statistics = np.array([[all(item.hits), 1] for item in items], np.float64)
    return Measured(statistics, share, _counts(statistics))


def _counts(statistics: Statistics) -> Details:
    correct, positions = (int(count) for count in statistics.sum(axis=0))
    return {"correct": correct, "positions": positions}


def _f1(items: Sequence[Labelled]) -> Measured:
    labels = _labels(items)
    place = {label: number for number, label in enumerate(labels)}
    # A row an item: of each label, how often it was hit, said and right.
    rows = len(items) if len(labels) <= MOST_RESAMPLED else 1
    statistics = np.zeros((rows, 3 * len(labels)))
    for number, item in enumerate(items):
        row = statistics[number % rows].reshape(3, -1)
        for hit, label in zip(item.hits, item.right, strict=False):
            row[0, place[label]] += hit
        for which, side in ((1, item.said), (2, item.right)):
            for label in side:
                row[which, place[label]] += 1

    def score(total: Statistics) -> float:
        hit, said, right = total.reshape(3, -1)
        there = said + right > 0
        return float(100.0 * (2 * hit[there] / (said + right)[there]).mean())

    of_labels = {}
    for label, (hit, said, right) in zip(
        labels, statistics.sum(axis=0).reshape(3, -1).T, strict=True
    ):
        of_labels[label] = {
            "precision": 100.0 * float(hit / said) if said else 0.0,
            "recall": 100.0 * float(hit / right) if right else 0.0,
            "f1": 100.0 * float(2 * hit / (said + right)),
            "count": int(right),
        }
    return Measured(statistics, score, {"labels": of_labels})


def _calibration(items: Sequence[Labelled]) -> Measured:
    # A row an item: of each bin, how many were said, how sure, how many right.
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
    """All labels that are right or were said, the most frequent first."""
    right = Counter(label for item in items for label in item.right)
    said = {label for item in items for label in item.said}
    return sorted(right.keys() | said, key=lambda label: (-right[label], label))


_MEASURES: dict[str, Callable[[Sequence[Labelled]], Measured]] = {
    "accuracy": _accuracy,
    "known": _of_words(True),
    "unknown": _of_words(False),
    "exact": _exact,
    "f1": _f1,
    "calibration": _calibration,
}
