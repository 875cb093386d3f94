"""What a search has found: the trials, the best first, in words and as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from transduce.errors import TrainingError
from transduce.evaluation.metrics import TITLES
from transduce.recipe import Recipe
from transduce.tuning.rungs import Trial, best_of, rank, rungs_of
from transduce.tuning.sample import importance
from transduce.tuning.space import short_names, shown, with_values
from transduce.tuning.study import Study


@dataclass(frozen=True)
class Results:
    """The trials of a search, the best first, and what mattered."""

    study: Study
    trials: list[Trial]
    importance: dict[str, float] = field(default_factory=dict)
    """Of each key, in shares of 1; empty: too few trials to say."""

    @property
    def best(self) -> Trial:
        return self.trials[0]

    @property
    def title(self) -> str:
        return TITLES.get(self.study.metric, self.study.metric)

    @property
    def recipe(self) -> Recipe:
        """The recipe of the best trial."""
        return with_values(self.study.recipe, self.best.values)

    def own(self) -> Trial | None:
        """The trial of the recipe as it was given."""
        first = min(self.trials, key=lambda trial: trial.number)
        same = with_values(self.study.recipe, first.values) == self.study.recipe
        return first if first.number == 0 and same else None

    def compared(self) -> str:
        """The best trial beside the recipe itself, at the furthest rung that both have reached."""
        own, best, metric = self.own(), self.best, self.study.metric
        common = 0 if own is None else min(len(own.scores), len(best.scores))
        if own is None or own is best or not common:
            return ""
        share = rungs_of(self.study.recipe)[common - 1]
        where = "in full" if share == 1 else f"to {share_text(share)}"
        scores = [score_text(metric, one.scores[common - 1]) for one in (best, own)]
        return f"Trained {where}, it has {scores[0]}, and the recipe itself {scores[1]}."


def results_of(study: Study) -> Results:
    """Raises TrainingError where no trial has a score."""
    trials = study.trials()
    if best_of(trials, study.metric) is None:
        raise TrainingError(_nothing(study, trials))
    trials.sort(key=lambda trial: (rank(study.metric, trial.best), -trial.updates, trial.number))
    return Results(study, trials, importance(study, trials))


def _nothing(study: Study, trials: Sequence[Trial]) -> str:
    failed = [trial for trial in trials if trial.failed]
    if failed and len(failed) == len(trials):
        last = failed[-1]
        return (
            f"all {len(trials)} trials failed, the last, trial {last.number}, as {last.failed}; "
            f"give other ranges with --search, in another --output"
        )
    return (
        f"no trial got as far as its first validation, at update "
        f"{study.recipe.validation.every:,}; the same command with more --minutes goes on, or set "
        f"a smaller validation.every in another --output"
    )


# ------------------------------------------------------------------------------------ in words


def score_text(metric: str, score: float | None) -> str:
    if score is None or not math.isfinite(score):
        return "-"
    return f"{score:.4f}" if metric in ("loss", "calibration") else f"{score:.2f}"


def share_text(share: float) -> str:
    return "all" if share == 1 else str(Fraction(share).limit_denominator(1000))


def how_far(trial: Trial, rungs: Sequence[float]) -> str:
    """How far a trial has come, in a word or two."""
    if trial.failed:
        return "failed"
    if trial.finished:
        return "in full"
    if trial.on_its_way:
        return "stopped"
    return share_text(rungs[trial.rung])


def rows(results: Results) -> list[list[str]]:
    """The table, with its head."""
    study, names = results.study, short_names(results.study.space)
    rungs = rungs_of(study.recipe)
    table = [["trial", results.title, "updates", "trained", *names.values()]]
    for trial in results.trials:
        values = [shown(trial.values[key]) for key in names]
        score = score_text(study.metric, trial.best)
        cells = [str(trial.number), score, f"{trial.updates:,}", how_far(trial, rungs)]
        table.append([*cells, *values])
    return table
