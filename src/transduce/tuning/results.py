"""What a search has found: the table, tune.tsv, tune.json, tune.svg and best.yaml."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from transduce.errors import TrainingError
from transduce.evaluation.metrics import TITLES, higher_is_better
from transduce.recipe import Recipe, dump_recipe
from transduce.storage import write_json, write_text
from transduce.tuning.rungs import Trial, best_of, rank, rungs_of
from transduce.tuning.sample import importance
from transduce.tuning.space import short_names, shown, value_of, with_values
from transduce.tuning.study import Study

TABLE, VALUES, FIGURE, BEST = "tune.tsv", "tune.json", "tune.svg", "best.yaml"


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


# --------------------------------------------------------------------------------------- files


def write_results(results: Results, seconds: float, test: Mapping[str, Any]) -> None:
    """Write the files of the results into the folder of the search."""
    from transduce.tuning.figure import draw

    study, folder = results.study, results.study.folder
    rungs = rungs_of(study.recipe)
    head = ["trial", study.metric, "updates", "trained", "seconds", *study.space, "failed"]
    lines = ["\t".join(head)]
    for trial in results.trials:
        best = "" if trial.best is None else f"{trial.best:.6g}"
        values = [shown(trial.values[key]) for key in study.space]
        cells = [trial.number, best, trial.updates, how_far(trial, rungs), trial.seconds]
        lines.append("\t".join(map(str, [*cells, *values, trial.failed])))
    write_text(folder / TABLE, "\n".join(lines) + "\n")
    found = {
        "metric": study.metric,
        "higher_is_better": higher_is_better(study.metric),
        "seconds": round(seconds, 1),
        "rungs": rungs,
        "search": {key: str(one) for key, one in study.space.items()},
        "best": results.best.number,
        "importance": results.importance,
        "trials": [asdict(trial) for trial in results.trials],
    }
    write_json(folder / VALUES, {**found, **({"test": test} if test else {})})
    write_text(folder / BEST, best_text(results))
    draw(results, folder / FIGURE)


def best_text(results: Results) -> str:
    """The best recipe as YAML, with where it comes from."""
    study, best = results.study, results.best
    score = score_text(study.metric, best.best)
    about = [
        f"# The best of {len(results.trials)} trials of `transduce tune`: trial {best.number}, with"
        f" {results.title} {score} on the",
        f"# validation set after {best.updates:,} updates. What was searched:",
    ]
    for key, one in study.space.items():
        value, before = best.values[key], value_of(study.recipe, key)
        was = "" if value == before else f", was {shown(before)}"
        about.append(f"#   {key}: {shown(value)} (of {one.about()}{was})")
    return "\n".join(about) + "\n" + dump_recipe(results.recipe)


def test_scores(results: Results) -> dict[str, Any]:
    """The best model's scores on the test set, which is evaluated once; empty: there is no such
    set, or no model."""
    study, best = results.study, results.best
    if study.recipe.data.test is None:
        return {}
    try:
        before = json.loads((study.folder / VALUES).read_text("utf-8"))["test"]
        if (before["trial"], before["updates"]) == (best.number, best.updates):
            return dict(before)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    from transduce.evaluation.evaluate import evaluate_folder
    from transduce.tasks.transduce import load

    folder = study.run(best)
    found = evaluate_folder(load(folder), folder, split="test")
    scores = {name: metric.to_json() for name, metric in found.metrics.items()}
    texts = [str(metric) for metric in found.metrics.values()]
    return {"trial": best.number, "updates": best.updates, "scores": scores, "words": texts}


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
