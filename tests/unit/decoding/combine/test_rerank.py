"""Choosing anew: risk against a double loop, rescoring against the sum."""

from __future__ import annotations

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from transduce.decoding import Hypothesis
from transduce.decoding.combine.rerank import expected_utility, minimum_bayes_risk, reranked

TEXTS = [
    "a dog runs over the grass",
    "a dog is running on the grass",
    "the cat sleeps",
    "a dog runs over the grass",
    "",
    "a dog runs on grass",
]


@pytest.mark.parametrize("metric", ["chrf", "bleu"])
def test_the_utility_is_that_of_a_double_loop(metric: str) -> None:
    measure = CHRF() if metric == "chrf" else BLEU(effective_order=True)
    filled = [text for text in TEXTS if text]
    expected = [
        sum(measure.sentence_score(text, [other]).score for other in filled) / len(filled)
        for text in filled
    ]
    assert expected_utility(filled, metric) == pytest.approx(expected)


def test_nothing_is_like_nothing_else() -> None:
    assert expected_utility(["", "", "a b"], "chrf") == pytest.approx([200 / 3, 200 / 3, 100 / 3])


def test_the_sample_most_like_the_others_is_chosen_and_each_text_once() -> None:
    drawn = [Hypothesis([i], -float(i), -float(i)) for i in range(len(TEXTS))]
    ranked = minimum_bayes_risk(drawn, TEXTS, "chrf")
    utilities = expected_utility(TEXTS, "chrf")
    assert ranked[0].tokens == [0]  # drawn twice, and like two others
    assert [h.score for h in ranked] == sorted(set(utilities), reverse=True)
    assert ranked[0].log_probability == 0.0
    assert len(ranked) == 5


def test_of_equals_the_more_probable_comes_first() -> None:
    drawn = [Hypothesis([i], -1.0, -float(i)) for i in (2, 1, 3)]
    assert [h.tokens for h in minimum_bayes_risk(drawn, ["ab", "cd", "ef"], "chrf")] == [
        [1],
        [2],
        [3],
    ]


def test_a_second_model_can_turn_the_order_round() -> None:
    found = [Hypothesis([4], -1.0, -1.0), Hypothesis([4, 5], -1.5, -1.5)]
    assert [h.tokens for h in reranked(found, [-3.0, -1.0], 0.0, 0.0)] == [[4], [4, 5]]
    ranked = reranked(found, [-3.0, -1.0], 2.0, 1.0)
    assert [h.tokens for h in ranked] == [[4, 5], [4]]
    assert ranked[0].score == pytest.approx((-1.5 - 2.0) / (8 / 6))
    assert ranked[0].log_probability == -1.5
