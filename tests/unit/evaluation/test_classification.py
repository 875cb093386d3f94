"""Measures of labels, beside sums by hand that know nothing of rows and resamples."""

from __future__ import annotations

import json
import random
from collections import Counter
from unicodedata import normalize

import pytest

from transduce.errors import DataError, RecipeError
from transduce.evaluation.classification import BINS, Labelled, measure_labels

ALL = ["accuracy", "known", "unknown", "exact", "f1", "calibration"]


def some_items(count: int = 200, seed: int = 3, words: int = 6) -> list[Labelled]:
    draw = random.Random(seed)
    labels = ["NOUN", "VERB", "ADJ", "X"]
    items = []
    for _ in range(count):
        length = draw.randint(1, words)
        right = draw.choices(labels, [5, 3, 2, 0], k=length)
        said = [r if draw.random() < 0.7 else draw.choice(labels) for r in right]
        sure = [draw.uniform(0.2, 1.0) for _ in right]
        known = [draw.random() < 0.8 for _ in right]
        items.append(Labelled(said, right, sure, known))
    return items


def flat(items: list[Labelled]) -> list[tuple[str, str, float, bool]]:
    return [
        row
        for item in items
        for row in zip(item.predicted, item.reference, item.sure, item.known, strict=True)
    ]


def test_shares_are_counted() -> None:
    items = some_items()
    rows = flat(items)
    found = measure_labels(ALL, items, bootstrap=0)
    right = [said == wanted for said, wanted, _, _ in rows]
    assert found["accuracy"].value == pytest.approx(100 * sum(right) / len(right))
    for name, wanted in (("known", True), ("unknown", False)):
        some = [hit for hit, row in zip(right, rows, strict=True) if row[3] == wanted]
        assert found[name].value == pytest.approx(100 * sum(some) / len(some))
        assert found[name].details == {"correct": sum(some), "positions": len(some)}
    whole = [item.predicted == item.reference for item in items]
    assert found["exact"].value == pytest.approx(100 * sum(whole) / len(whole))


def test_nothing_is_said_of_words_that_are_not_there() -> None:
    items = [Labelled(["A"], ["A"], known=[True])]
    assert list(measure_labels(["known", "unknown"], items, bootstrap=0)) == ["known"]


def test_f1_is_the_mean_over_labels() -> None:
    rows = flat(some_items())
    pairs = Counter((said, right) for said, right, _, _ in rows)
    labels = sorted({label for pair in pairs for label in pair})
    scores = {}
    for label in labels:
        hit = pairs[label, label]
        said = sum(n for (s, _), n in pairs.items() if s == label)
        right = sum(n for (_, r), n in pairs.items() if r == label)
        precision, recall = hit / said, hit / right if right else 0.0
        scores[label] = 200 * precision * recall / ((precision + recall) or 1)
    found = measure_labels(["f1"], some_items(), bootstrap=0)["f1"]
    assert found.value == pytest.approx(sum(scores.values()) / len(scores))
    of_labels = found.details["labels"]
    assert {label: of_labels[label]["f1"] for label in labels} == pytest.approx(scores)
    assert of_labels["X"] == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "count": 0,
    }  # never right, but said


def test_the_confusion_matrix_has_right_labels_in_its_rows() -> None:
    items = [
        Labelled(["pos"], ["neg"]),
        Labelled(["neg"], ["neg"]),
        Labelled(["neg"], ["neg"]),
        Labelled(["pos"], ["pos"]),
    ]
    details = measure_labels(["accuracy"], items, bootstrap=0)["accuracy"].details
    assert details["labels"] == ["neg", "pos"]
    assert details["confusion"] == [[2, 1], [0, 1]]


def test_calibration_is_the_mean_gap_of_the_bins() -> None:
    rows = flat(some_items())
    error = 0.0
    for place in range(BINS):
        low, high = place / BINS, (place + 1) / BINS
        inside = [(s == r, sure) for s, r, sure, _ in rows if low < sure <= high]
        if inside:
            right = sum(hit for hit, _ in inside) / len(inside)
            sure = sum(sure for _, sure in inside) / len(inside)
            error += len(inside) / len(rows) * abs(right - sure)
    found = measure_labels(["calibration"], some_items(), bootstrap=0)["calibration"]
    assert found.value == pytest.approx(100 * error)
    assert not found.higher_is_better
    assert sum(row["count"] for row in found.details["bins"]) == len(rows)
    for row in found.details["bins"]:
        assert 100 * row["from"] <= row["sure"] <= 100 * row["to"]


def test_the_reliability_of_each_bin() -> None:
    drawn = [(0.95, True), (1.0, True), (1.0000001, False), (0.15, False), (0.0, True)]
    items = [Labelled(["a"], ["a" if hit else "b"], [sure]) for sure, hit in drawn]
    bins = measure_labels(["calibration"], items, bootstrap=0)["calibration"].details["bins"]
    shown = [(row["count"], round(row["sure"], 3), round(row["right"], 3)) for row in bins]
    assert shown[0][0] == 1
    assert shown[0][1:] == (0.0, 100.0)
    assert shown[-1][2] == pytest.approx(200 / 3, abs=0.01)
    assert bins[-1]["to"] == 1.0
    assert sum(row["count"] for row in bins) == 5


def test_one_who_is_as_sure_as_right_is_calibrated() -> None:
    draw = random.Random(5)
    items = []
    for _ in range(20_000):
        sure = draw.uniform(0.5, 1.0)
        items.append(Labelled(["a"], ["a" if draw.random() < sure else "b"], [sure]))
    assert measure_labels(["calibration"], items, bootstrap=0)["calibration"].value < 1.5
    boasting = [Labelled(i.predicted, i.reference, [1.0]) for i in items]
    found = measure_labels(["calibration"], boasting, bootstrap=0)["calibration"].value
    assert found == pytest.approx(25, abs=1)


def test_other_numbers_of_labels_are_wrong_where_one_side_has_none() -> None:
    items = [Labelled(["A"], ["A", "B"], [0.9], [True, True]), Labelled(["A", "B"], ["A"])]
    found = measure_labels(ALL, items, bootstrap=0)
    assert found["accuracy"].details["positions"] == 4
    assert found["accuracy"].value == 50.0
    assert found["exact"].value == 0.0


def test_intervals_hold_the_value_and_shrink_with_more_items() -> None:
    widths = []
    for count in (100, 900):
        for metric in measure_labels(ALL, some_items(count), bootstrap=200).values():
            assert metric.low <= metric.value <= metric.high or metric.name == "calibration"
        accuracy = measure_labels(["accuracy"], some_items(count), bootstrap=200)["accuracy"]
        widths.append(accuracy.high - accuracy.low)
    assert widths[1] < 0.6 * widths[0]


def test_very_many_labels_have_no_matrix_and_no_interval_of_f1() -> None:
    items = [Labelled([f"l{n}"], [f"l{n % 299}"]) for n in range(300)]
    found = measure_labels(["accuracy", "f1"], items, bootstrap=50)
    assert "confusion" not in found["accuracy"].details
    assert found["accuracy"].low is not None
    assert found["f1"].low is None
    # Of l0, said once and right twice, 2·1 / (1 + 2); l299 was never right.
    assert found["f1"].value == pytest.approx(100 * (298 + 2 / 3) / 300)


def test_what_json_can_say() -> None:
    for metric in measure_labels(ALL, some_items(), bootstrap=5).values():
        assert json.loads(json.dumps(metric.to_json()))["value"] == metric.value


def test_what_cannot_be_measured() -> None:
    with pytest.raises(DataError):
        measure_labels(["accuracy"], [])
    with pytest.raises(RecipeError, match="bleu does not measure labels"):
        measure_labels(["bleu"], some_items())


def test_labels_are_compared_in_one_unicode_form() -> None:
    items = [Labelled([normalize("NFD", "négatif")], ["négatif"]), Labelled(["été"], ["été"])]
    found = measure_labels(["accuracy", "f1"], items, bootstrap=0)
    assert found["accuracy"].value == found["f1"].value == 100.0
    assert found["accuracy"].details["labels"] == ["négatif", "été"]


ENTITIES = [
    ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC"),  # both right
    ("B-PER O O B-LOC", "B-PER I-PER O B-ORG"),  # an end and a kind are wrong
    ("O O", "O B-ORG"),  # one is missing
    ("B-LOC", "O"),  # one is too many
]


def test_entity_f1_counts_whole_entities() -> None:
    items = [Labelled(said.split(), right.split()) for said, right in ENTITIES]
    found = measure_labels(["entity_f1"], items, bootstrap=0)["entity_f1"]
    # 2 of 5 that were predicted, 2 of 5 that are there.
    assert found.value == pytest.approx(100 * 2 * 2 / (5 + 5))
    assert found.details["precision"] == found.details["recall"] == pytest.approx(40.0)
    of = found.details["labels"]
    assert list(of) == ["ORG", "PER", "LOC"]  # the most frequent first, then by name
    assert of["PER"] == {"precision": 50.0, "recall": 50.0, "f1": 50.0, "count": 2}
    assert of["LOC"] == pytest.approx({"precision": 100 / 3, "recall": 100, "f1": 50, "count": 1})
    assert of["ORG"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "count": 2}


def test_without_entities_nothing_is_right() -> None:
    found = measure_labels(["entity_f1"], [Labelled(["O"], ["O"])], bootstrap=0)["entity_f1"]
    assert found.value == 0.0
    assert found.details["labels"] == {}
