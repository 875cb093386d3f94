"""Metrics against sacrebleu's and jiwer's public calls, and against a brute-force edit distance."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import get_args
from unicodedata import normalize

import jiwer
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.errors import DataError, RecipeError
from transduce.evaluation.metrics import (
    HIGHER_IS_BETTER,
    Metric,
    confused,
    decimals,
    measure,
    rows_of,
)
from transduce.recipe import MetricName
from transduce.recipe.tasks import TASK_RULES, TEXT_METRICS

WORDS = ["a", "the", "dog", "runs", "over", "green", "hills", "and", "two", "small", "birds", "."]


def corpus(items: int, seed: int = 0) -> tuple[list[str], list[list[str]]]:
    """References, and hypotheses with some words dropped, doubled or exchanged."""
    choose = random.Random(seed)
    hypotheses, references = [], []
    for _ in range(items):
        reference = choose.choices(WORDS, k=choose.randint(4, 14))
        hypothesis = []
        for word in reference:
            luck = choose.random()
            if luck < 0.1:
                continue
            hypothesis.append(choose.choice(WORDS) if luck < 0.2 else word)
            if luck > 0.95:
                hypothesis.append(word)
        hypotheses.append(" ".join(hypothesis))
        references.append([" ".join(reference)])
    return hypotheses, references


def edit_distance(a: list[str], b: list[str]) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            last, row[j] = row[j], min(last + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def value(name: str, hypotheses: list[str], references: list[list[str]]) -> float:
    return measure([name], hypotheses, references, bootstrap=0)[name].value


PUBLIC = {
    "bleu": sacrebleu.corpus_bleu,
    "chrf": sacrebleu.corpus_chrf,
    "chrf++": partial(sacrebleu.corpus_chrf, word_order=2),
    "ter": sacrebleu.corpus_ter,
}


@pytest.mark.parametrize("name", PUBLIC)
def test_same_as_sacrebleu(name: str) -> None:
    hypotheses, references = corpus(60)
    expected = PUBLIC[name](hypotheses, [[accepted[0] for accepted in references]])
    metric = measure([name], hypotheses, references, bootstrap=0)[name]
    assert metric.value == pytest.approx(expected.score)
    assert "version:" in str(metric.details["signature"])
    assert "nrefs:1" in str(metric.details["signature"])


@pytest.mark.parametrize("name", PUBLIC)
def test_several_references_as_sacrebleu(name: str) -> None:
    hypotheses, references = corpus(40)
    _, others = corpus(40, seed=5)
    several = [
        [*first, *(second if i % 2 else [])]
        for i, (first, second) in enumerate(zip(references, others, strict=True))
    ]
    streams = [[a[0] for a in several], [a[1] if len(a) > 1 else None for a in several]]
    metric = measure([name], hypotheses, several, bootstrap=0)[name]
    assert metric.value == pytest.approx(PUBLIC[name](hypotheses, streams).score)
    assert "nrefs:var" in str(metric.details["signature"])


def test_same_as_jiwer() -> None:
    hypotheses, references = corpus(60)
    first = [accepted[0] for accepted in references]
    measured = measure(["wer", "cer", "per"], hypotheses, references, bootstrap=0)
    assert measured["wer"].value == pytest.approx(100 * jiwer.wer(first, hypotheses))
    assert measured["per"].value == pytest.approx(100 * jiwer.wer(first, hypotheses))
    assert measured["cer"].value == pytest.approx(100 * jiwer.cer(first, hypotheses))
    output = jiwer.process_words(first, hypotheses)
    assert measured["wer"].details == {
        "substitutions": output.substitutions,
        "deletions": output.deletions,
        "insertions": output.insertions,
        "hits": output.hits,
        "reference_length": sum(len(text.split()) for text in first),
        "unicode": "NFC",
        "confused": measured["per"].details["confused"],
    }
    edits = output.substitutions + output.deletions + output.insertions
    every = confused(rows_of(["wer"], hypotheses, references)["wer"].edits or [], most=10_000)
    assert sum(count for _, _, count in every) == edits
    assert every[:20] == measured["wer"].details["confused"]


phones = st.lists(st.sampled_from(["AA", "B", "K", "IY1"]), max_size=7)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(phones, st.lists(phones, min_size=1, max_size=3)), min_size=1, max_size=6)
)
def test_per_is_edits_to_the_closest_reference(
    items: list[tuple[list[str], list[list[str]]]],
) -> None:
    edits = length = 0
    for hypothesis, accepted in items:
        closest = min(accepted, key=lambda reference: edit_distance(reference, hypothesis))
        edits += edit_distance(closest, hypothesis)
        length += len(closest)
    measured = value(
        "per", [" ".join(h) for h, _ in items], [[" ".join(r) for r in a] for _, a in items]
    )
    assert measured == pytest.approx(100 * edits / max(length, 1))


@settings(max_examples=40, deadline=None)
@given(st.text("ab é", max_size=8), st.text("ab é", max_size=8))
def test_cer_is_edits_of_characters(hypothesis: str, reference: str) -> None:
    edits = edit_distance(list(reference.strip()), list(hypothesis.strip()))
    assert value("cer", [hypothesis], [[reference]]) == pytest.approx(
        100 * edits / max(len(reference.strip()), 1)
    )


def test_closest_reference_decides() -> None:
    metric = measure(["per"], ["T AH M AA T OW"], [["T AH M EY T OW", "T AH M AA T OW"]])["per"]
    assert metric.value == 0
    assert metric.details["hits"] == 6
    # Equally far: the first one, whose length is 1.
    assert measure(["per"], ["A"], [["B", "A C"]])["per"].details["reference_length"] == 1


def test_white_space_of_any_kind_separates_phones() -> None:
    assert value("per", ["K\tAE1  T"], [["K AE1 T"]]) == 0


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_empty_strings_are_measured(name: str) -> None:
    for hypotheses, references in [
        ([""], [[""]]),
        ([""], [["a b"]]),
        (["a b"], [[""]]),
        (["a", "", "b c"], [["a"], ["x y"], [""]]),
    ]:
        metric = measure([name], hypotheses, references, bootstrap=20)[name]
        assert metric.value == pytest.approx(metric.value)
        assert metric.low is not None
        assert metric.high is not None


def test_insertions_into_an_empty_reference_count() -> None:
    metric = measure(["wer"], ["a b", "c d"], [[""], ["c d"]], bootstrap=0)["wer"]
    assert metric.value == 100
    assert metric.details["insertions"] == 2


def test_exact_and_accuracy() -> None:
    hypotheses = ["A B C", "A B", "X", "A  B"]
    references = [["A B C"], ["A B C"], ["Y", "X"], ["A B"]]
    assert value("exact", hypotheses, references) == 75
    # 3 of 3, 2 of 3, 1 of 1, 2 of 2 positions
    assert value("accuracy", hypotheses, references) == pytest.approx(100 * 8 / 9)
    assert value("accuracy", ["A B C"], [["B C"]]) == 0


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_interval_holds_the_value_and_shrinks(name: str) -> None:
    few, many = corpus(30), corpus(300)
    small = measure([name], *few, bootstrap=200)[name]
    large = measure([name], *many, bootstrap=200)[name]
    for metric in (small, large):
        assert metric.low is not None
        assert metric.high is not None
        assert metric.low <= metric.value <= metric.high
    assert large.high - large.low < small.high - small.low  # type: ignore[operator]


def test_interval_follows_the_seed() -> None:
    data = corpus(40)
    first, again = (measure(["bleu"], *data, bootstrap=100, seed=3)["bleu"] for _ in range(2))
    other = measure(["bleu"], *data, bootstrap=100, seed=4)["bleu"]
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert measure(["bleu"], *data, bootstrap=0)["bleu"].low is None


def test_interval_of_wer_covers_the_textbook_one() -> None:
    # Items of one word each: the error rate is a mean of coin tosses, with a known deviation.
    hypotheses = ["a"] * 300 + ["b"] * 100
    metric = measure(["wer"], hypotheses, [["a"]] * 400, bootstrap=2000)["wer"]
    half = 100 * 1.96 * (0.25 * 0.75 / 400) ** 0.5
    assert metric.low == pytest.approx(25 - half, abs=0.7)
    assert metric.high == pytest.approx(25 + half, abs=0.7)


def test_what_a_person_reads() -> None:
    assert str(Metric("bleu", 41.23, 39.9, 42.61, True)) == "BLEU 41.2 [39.9, 42.6]"
    assert str(Metric("per", 8.314, 8.02, 8.6, False)) == "PER 8.31 % [8.02, 8.60]"
    assert str(Metric("exact", 70.0, None, None, True)) == "exact match 70.00 %"


def test_json_round_trip() -> None:
    for metric in measure(TEXT_METRICS, *corpus(5), bootstrap=5).values():
        assert json.loads(json.dumps(metric.to_json(), allow_nan=False)) == metric.to_json()


def test_every_metric_of_the_recipe_has_a_direction() -> None:
    assert set(HIGHER_IS_BETTER) == {"loss", *get_args(MetricName)}
    errors = {"loss", "ter", "wer", "cer", "per", "calibration"}
    errors |= {"perplexity", "bits_per_character", "bits_per_byte"}
    assert {name for name, higher in HIGHER_IS_BETTER.items() if not higher} == errors
    assert {name for rules in TASK_RULES.values() for name in rules.metrics} == set(
        get_args(MetricName)
    )


def test_mistakes_are_one_sentence() -> None:
    with pytest.raises(DataError, match="nothing to measure"):
        measure(["bleu"], [], [])
    with pytest.raises(DataError, match="2 hypotheses but references for 1 items"):
        measure(["bleu"], ["a", "b"], [["a"]])
    with pytest.raises(DataError, match="Item 2 has no reference"):
        measure(["bleu"], ["a", "b"], [["a"], []])
    with pytest.raises(DataError, match="item 1 are a string"):
        measure(["bleu"], ["a"], ["a"])
    with pytest.raises(RecipeError, match="did you mean bleu"):
        measure(["belu"], ["a"], [["a"]])


def test_texts_are_compared_in_one_unicode_form() -> None:
    texts = ["déjà vu à Noël", "한국어 글", "το άλφα και το ωμέγα ῶ"]
    apart = [normalize("NFD", text) for text in texts]
    names = ["bleu", "chrf", "ter", "wer", "cer", "per", "exact", "accuracy"]
    for said, right in ((texts, apart), (apart, texts), (apart, apart)):
        found = measure(names, said, [[text] for text in right], bootstrap=0)
        for name, metric in found.items():
            perfect = 100.0 if metric.higher_is_better else 0.0
            assert metric.value == pytest.approx(perfect), name
            assert metric.details["unicode"] == "NFC"
    one_wrong = measure(["cer"], ["e"], [[normalize("NFD", "é")]], bootstrap=0)["cer"]
    assert one_wrong.details["reference_length"] == 1


@pytest.mark.parametrize(
    ("name", "expected"), [("exact", 2), ("bleu", 2), ("perplexity", 3), ("loss", 4)]
)
def test_a_value_has_two_decimals_or_more(name: str, expected: int) -> None:
    assert decimals(name) == expected


@pytest.mark.parametrize(
    ("text", "tokenizer"),
    [("我 喜欢 喝茶 。", "zh"), ("I like tea .", "13a"), ("ฉันชอบดื่มชา", "char")],
)
def test_bleu_reads_the_script_of_the_references(text: str, tokenizer: str) -> None:
    longer = text * 4
    found = measure(["bleu"], [longer], [[longer]], bootstrap=0)["bleu"]
    assert found.value == pytest.approx(100)
    assert f"tok:{tokenizer}" in found.details["signature"]
    given = measure(["bleu"], [longer], [[longer]], bootstrap=0, bleu_tokenizer="char")["bleu"]
    assert "tok:char" in given.details["signature"]


@pytest.mark.parametrize(
    ("hypothesis", "share"), [("a b", 100), ("a b c d", 50), ("a", 50), ("a c b b", 25), ("", 0)]
)
def test_what_is_too_long_is_not_accurate(hypothesis: str, share: float) -> None:
    found = measure(["accuracy"], [hypothesis], [["a b"]], bootstrap=0)["accuracy"]
    assert found.value == pytest.approx(share)
