"""The files of a search's results: tune.tsv, tune.json, tune.svg and best.yaml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transduce.evaluation.metrics import higher_is_better
from transduce.recipe import dump_recipe
from transduce.storage import write_json, write_text
from transduce.tuning.figure import draw
from transduce.tuning.results import Results, how_far, score_text
from transduce.tuning.rungs import rungs_of
from transduce.tuning.space import shown, value_of

TABLE, VALUES, FIGURE, BEST = "tune.tsv", "tune.json", "tune.svg", "best.yaml"


def write_results(results: Results, seconds: float, test: Mapping[str, Any]) -> None:
    """Write the files of the results into the folder of the search."""
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
