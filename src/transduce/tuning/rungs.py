"""Successive halving: which trial goes on (ASHA, Li et al. 2020, https://arxiv.org/abs/1810.05934).

A rung is a share of a training. Of the trials that have reached one, the best third goes on to the
next, as soon as there are three: nobody waits for the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transduce.recipe import Recipe
from transduce.training.run_directory.best_model import badness

REDUCTION = 3  # of the trials of a rung, one in so many goes on to the next
SHARES = (1 / REDUCTION**2, 1 / REDUCTION, 1.0)
"""Of a training: where trials are compared."""


@dataclass(frozen=True)
class Trial:
    """One choice of values, and how far it has come."""

    number: int
    values: dict[str, Any]
    rung: int = 0
    """The rung that it is on its way to, or has reached."""
    scores: list[float | None] = field(default_factory=list)
    """The best value of the metric so far at each rung that it has reached; None: NaN."""
    losses: list[float | None] = field(default_factory=list)
    """The lowest validation loss at each of them."""
    finished: bool = False
    """Trained to its end."""
    failed: str = ""
    """Why it cannot be trained; empty: it can."""
    best: float | None = None
    """Of all validations so far, also of those after its last rung."""
    updates: int = 0
    seconds: float = 0.0
    """Of wall clock, of its training."""

    @property
    def reached(self) -> bool:
        return len(self.scores) > self.rung

    @property
    def waits(self) -> bool:
        """Whether it stands at its rung, and could go on."""
        return self.reached and not self.finished and not self.failed

    @property
    def on_its_way(self) -> bool:
        return not (self.reached or self.finished or self.failed)


def rungs_of(recipe: Recipe) -> list[float]:
    """The shares of a training at which trials are compared: 1/9, 1/3 and all of it.

    They are reached at validations: where a training has few of them, there are fewer rungs.
    """
    validations = max(recipe.train.steps // recipe.validation.every, 1)
    by_validation = {math.ceil(share * validations - 1e-9): share for share in SHARES}
    # Several at the same validation: the last of them, as it is what is reached there.
    return list(by_validation.values())


def trainings(trials: int, rungs: Sequence[float]) -> float:
    """How many whole trainings a search of so many trials is worth."""
    total, before, count = 0.0, 0.0, trials
    for share in rungs:
        total += count * (share - before)
        before, count = share, max(count // REDUCTION, 1)
    return total


def rank(metric: str, score: float | None, loss: float | None = None) -> tuple[float, float]:
    """A sort key by which the best comes first.

    Of equals, the one with the lower loss: at the first rung no output may be right as a whole.
    """
    first = math.inf if score is None else badness(metric, score)
    return first, math.inf if loss is None else loss


def next_promotion(
    trials: Sequence[Trial], rungs: int, metric: str, more_to_come: bool
) -> Trial | None:
    """The trial that goes on to its next rung; None: none does now.

    more_to_come: whether further trials will begin. Once nothing else is left to do, the best of
    the furthest rung goes on, however few they are: one trial is trained to its end.
    """
    for rung in reversed(range(rungs - 1)):
        there = [trial for trial in trials if len(trial.scores) > rung]
        there.sort(key=lambda trial: rank(metric, trial.scores[rung], trial.losses[rung]))
        for trial in there[: len(there) // REDUCTION]:
            if trial.waits and trial.rung == rung and trial.scores[rung] is not None:
                return trial
    if more_to_come or any(trial.on_its_way for trial in trials):
        return None
    alive = [trial for trial in trials if trial.scores and not trial.failed]
    furthest = max((len(trial.scores) for trial in alive), default=0)
    last = [trial for trial in alive if len(trial.scores) == furthest]
    if furthest in (0, rungs) or any(trial.finished for trial in last):
        return None
    best = min(last, key=lambda trial: rank(metric, trial.scores[-1], trial.losses[-1]))
    return best if best.scores[-1] is not None else None


def best_of(trials: Sequence[Trial], metric: str) -> Trial | None:
    """The trial whose model is the best; of equals the one that was trained longer."""
    scored = [trial for trial in trials if trial.best is not None]
    if not scored:
        return None
    return min(scored, key=lambda trial: (rank(metric, trial.best), -trial.updates))
