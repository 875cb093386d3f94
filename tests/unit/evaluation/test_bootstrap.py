"""Bootstrap resampling: sacrebleu's own test as the oracle, and cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import _paired_bs_test

from transduce.evaluation.bootstrap import (
    middle,
    paired_difference,
    resampled,
    slice_gap,
)
from transduce.evaluation.metrics import percentage, rows_of

SEED = 12345
TEXT = "a cat dog sits on the mat and looks at an old red house near some tall trees"
WORDS = TEXT.split()


def sentences(count: int, noise: float, seed: int) -> list[str]:
    """Sentences, the same for every seed but for some words."""
    fixed, random = np.random.default_rng(0), np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        words = [str(word) for word in fixed.choice(WORDS, size=int(fixed.integers(6, 14)))]
        texts.append(
            " ".join(str(random.choice(WORDS)) if random.random() < noise else w for w in words)
        )
    return texts


REFERENCES = sentences(60, 0.0, 1)


@pytest.mark.parametrize(("noise", "clear"), [(0.12, False), (0.35, True)])
def test_the_same_resamples_as_sacrebleus_paired_bootstrap(noise: float, clear: bool) -> None:
    first, second = sentences(60, 0.1, 2), sentences(60, noise, 3)
    rows = [rows_of(["bleu"], said, [[r] for r in REFERENCES])["bleu"] for said in (first, second)]
    ours = paired_difference(rows[0][:2], rows[1][:2], resamples=500, seed=SEED)

    metric = BLEU()
    baseline = metric._extract_corpus_statistics(first, [REFERENCES])
    info = {"BLEU": (baseline, metric.corpus_score(first, [REFERENCES]))}
    _, found = _paired_bs_test(  # type: ignore[arg-type]
        info, "second", second, [REFERENCES], {"BLEU": metric}, n_samples=500, seed=SEED
    )
    theirs = found["BLEU"]
    scores = [resampled(one.statistics, one.score, 500, SEED) for one in rows]
    assert scores[1].mean() == pytest.approx(theirs.mean, abs=1e-4)
    # sacrebleu looks at one tail, of the absolute differences; ours is two-sided.
    apart = np.abs(scores[1] - scores[0])
    one_tail = (np.sum(apart - apart.mean() > abs(ours.value)) + 1) / 501
    assert one_tail == pytest.approx(theirs.p_value)
    assert ours.p is not None
    assert theirs.p_value is not None
    assert ours.is_clear == clear
    assert (ours.p < 0.05) == clear
    if clear:
        assert theirs.p_value <= ours.p <= 2 * theirs.p_value + 0.01


def hits(*right: int) -> np.ndarray:
    return np.array([[one, 1] for one in right], np.float64)


def test_two_items_by_hand() -> None:
    # Drawn twice the first, both, twice the second: 0, 50 or 100 better, in ¼, ½ and ¼ of cases.
    found = paired_difference((hits(1, 0), percentage), (hits(1, 1), percentage), resamples=4000)
    assert found.value == 50.0
    assert (found.low, found.high) == (0.0, 100.0)
    assert not found.is_clear
    # As far from 50 as 50 is from zero are 0 and 100.
    assert found.p == pytest.approx(0.5, abs=0.03)
    same = paired_difference((hits(1, 0), percentage), (hits(1, 0), percentage))
    assert (same.value, same.low, same.high, same.p) == (0.0, 0.0, 0.0, 1.0)


def test_both_models_are_asked_for_the_same_items() -> None:
    # Half of the items are hard for both; the second has one more in fifty right.
    first = hits(*([1, 0] * 200))
    second = first.copy()
    second[1:17:2, 0] = 1
    found = paired_difference((first, percentage), (second, percentage))
    assert found.value == pytest.approx(2.0)
    assert found.low is not None
    assert found.high is not None
    assert 0.5 < found.low < 2.0 < found.high < 4.0  # by itself each score varies by ±5
    low, high = middle(resampled(first, percentage))
    assert high - low > 8
    assert found.p is not None
    assert found.p < 0.05


def test_without_a_row_an_item_there_is_no_interval() -> None:
    found = paired_difference((hits(1, 0), percentage), (np.array([[2.0, 2.0]]), percentage))
    assert (found.value, found.low, found.p) == (50.0, None, None)


def test_the_gap_is_between_the_best_and_the_worst_slice() -> None:
    slices = ["x"] * 40 + ["y"] * 40 + ["z"] * 40
    rows = hits(*([1] * 36 + [0] * 4), *([1] * 20 + [0] * 20), *([1] * 28 + [0] * 12))
    found = slice_gap(rows, percentage, slices, higher_is_better=True)
    assert found is not None
    assert (found.best, found.worst, found.value) == ("x", "y", pytest.approx(40.0))
    assert found.low is not None
    assert found.high is not None
    assert 15 < found.low < 40 < found.high < 65
    assert found.p is not None
    assert found.p < 0.01
    errors = slice_gap(rows, percentage, slices, higher_is_better=False)
    assert errors is not None
    assert (errors.best, errors.worst) == ("y", "x")
    assert errors.low is not None
    assert errors.low > 0


def test_a_gap_by_chance_has_a_large_p() -> None:
    random = np.random.default_rng(3)
    rows = hits(*random.integers(0, 2, size=200))
    found = slice_gap(rows, percentage, [f"part {n % 8}" for n in range(200)], True)
    assert found is not None
    assert found.value > 5  # with eight slices there always is one
    assert found.p is not None
    assert found.p > 0.1
    assert slice_gap(rows, percentage, ["one"] * 200, True) is None
