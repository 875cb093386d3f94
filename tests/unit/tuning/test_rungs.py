"""Successive halving: who goes on."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.tuning.rungs import SHARES, Trial, best_of, next_promotion, rungs_of, trainings
from tuning_study import Make


def at_first(scores: list[float | None]) -> list[Trial]:
    return [
        Trial(n, {}, scores=[score], losses=[None], best=score) for n, score in enumerate(scores)
    ]


def test_the_best_third_goes_on() -> None:
    trials = at_first([5.0, 3.0])
    assert next_promotion(trials, 3, "loss", more_to_come=True) is None
    trials = at_first([5.0, 3.0, 4.0])
    assert next_promotion(trials, 3, "loss", more_to_come=True) == trials[1]
    assert next_promotion(trials, 3, "bleu", more_to_come=True) == trials[0]  # more is better
    trials[1] = replace(trials[1], rung=1)  # it is on its way
    assert next_promotion(trials, 3, "loss", more_to_come=True) is None
    assert next_promotion(trials, 3, "loss", more_to_come=False) is None  # it may come back
    trials += at_first([6.0, 2.0, 7.0])
    assert next_promotion(trials, 3, "loss", more_to_come=True) == trials[4]


def test_the_furthest_goes_first() -> None:
    """So that a training is complete early, and the end of the time finds something."""
    further = [
        Trial(n, {}, 1, [score, score], [None, None], best=score)
        for n, score in enumerate([3.0, 4.0, 5.0])
    ]
    trials = [*further, *(replace(t, number=3 + t.number) for t in at_first([1.0, 6.0, 7.0]))]
    assert next_promotion(trials, 3, "loss", more_to_come=True) == trials[0]


def test_of_equals_the_lower_loss_goes_on() -> None:
    losses = [3.0, 1.0, 2.0]
    trials = [replace(t, losses=[losses[t.number]]) for t in at_first([0.0, 0.0, 0.0])]
    assert next_promotion(trials, 3, "exact", more_to_come=True) == trials[1]
    assert next_promotion(trials[::2], 3, "exact", more_to_come=False) == trials[2]


def test_nan_does_not_go_on() -> None:
    trials = at_first([None, None, None])
    assert next_promotion(trials, 3, "loss", more_to_come=True) is None
    assert next_promotion(trials, 3, "loss", more_to_come=False) is None
    trials = at_first([None, 9.0, None])
    assert next_promotion(trials, 3, "loss", more_to_come=True) == trials[1]


def test_a_trial_that_failed_makes_place_at_the_end() -> None:
    trials = at_first([1.0, 2.0, 3.0])
    trials[0] = replace(trials[0], rung=1, failed="NaN")
    assert next_promotion(trials, 3, "loss", more_to_come=True) is None
    assert next_promotion(trials, 3, "loss", more_to_come=False) == trials[1]


def test_one_that_stopped_early_is_not_trained_again() -> None:
    done = Trial(0, {}, 0, [1.0] * 3, [None] * 3, finished=True, best=1.0)
    assert next_promotion([done, *at_first([2.0, 3.0])], 3, "loss", more_to_come=False) is None


@settings(max_examples=40)
@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=30),
    st.integers(1, 3),
    st.sampled_from(["loss", "bleu"]),
    st.integers(1, 4),
)
def test_a_search_ends_with_one_trained_in_full_and_none_too_many(
    scores: list[float], rungs: int, metric: str, together: int
) -> None:
    """Simulated: `together` trials at a time, whose score is the same at every rung."""
    trials: list[Trial] = []
    running: list[int] = []

    def step() -> bool:
        more = len(trials) < len(scores)
        promoted = next_promotion(trials, rungs, metric, more)
        if promoted is not None:
            trials[promoted.number] = replace(promoted, rung=promoted.rung + 1)
            running.append(promoted.number)
        elif more:
            trials.append(Trial(len(trials), {}))
            running.append(len(trials) - 1)
        return promoted is not None or more

    while True:
        while len(running) < together and step():
            pass
        if not running:
            break
        trial, score = trials[running[0]], scores[running.pop(0)]
        losses = [*trial.losses, None]
        reached = replace(trial, scores=[*trial.scores, score], losses=losses, best=score)
        trials[trial.number] = replace(reached, finished=len(reached.scores) == rungs)
    assert len(trials) == len(scores)
    counts = [sum(len(trial.scores) > rung for trial in trials) for rung in range(rungs)]
    assert counts[0] == len(scores)
    assert counts[-1] >= 1
    best = best_of(trials, metric)
    assert best is not None
    assert best.finished  # the best of all is never left behind
    assert best.best == (max(scores) if metric == "bleu" else min(scores))
    if together == 1:  # some go on before better ones come, but no more than the logarithm of n
        for before, after in pairwise(counts):
            assert after <= before / 3 + 2 * math.log2(before + 1) + 1


def test_rungs_are_at_validations(make: Make) -> None:
    def shares(steps: int, every: int) -> list[float]:
        return rungs_of(make(f"train.steps={steps}", f"validation.every={every}"))

    assert shares(9, 1) == [1 / 9, 1 / 3, 1.0]
    assert shares(1000, 10) == [1 / 9, 1 / 3, 1.0]
    assert shares(1000, 500) == [1 / 3, 1.0]  # one third is at the same validation as one ninth
    assert shares(1000, 1000) == [1.0]
    assert shares(10, 1000) == [1.0]


def test_what_a_search_costs() -> None:
    assert trainings(1, SHARES) == pytest.approx(1.0)
    assert trainings(20, SHARES) == pytest.approx(20 / 9 + 6 * 2 / 9 + 2 * 2 / 3)
    assert trainings(7, [1.0]) == 7


def test_the_best_of_equals_was_trained_longer() -> None:
    trials = [replace(trial, updates=trial.number) for trial in at_first([2.0, 1.0, 1.0, None])]
    assert best_of(trials, "loss") == trials[2]
    assert best_of(at_first([None]), "loss") is None
