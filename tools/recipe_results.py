"""Results of the shipped recipes: what `benchmarks/recipes.py` measured, a page for each group.

Groups and what is shown of them, with published figures and their sources, are in
benchmarks/published.yaml. A group or a figure that no results hold is not in the page.
"""

from __future__ import annotations

import json
import re
import statistics
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml
from result_tables import table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
EXPERIMENTS = ROOT / "benchmarks" / "experiments"
PUBLISHED = ROOT / "benchmarks" / "published.yaml"
FAR = 0.2  # of the mean: a larger deviation says little by itself
ENSEMBLE = "ensemble"
VALID = "valid"
# Keys by today's names; figures that were measured before carry the names that keys had then.
RENAMED = {
    "train.agreement": "train.r_drop",
    "train.tokens": "train.batch_tokens",
    "train.smoothing": "train.label_smoothing",
    "train.clip": "train.clip_norm",
    "model.tie": "model.tie_embeddings",
    "model.ctc": "model.ctc_weight",
    "model.pool": "model.pooling",
    "decode.ctc": "decode.ctc_weight",
    "decode.coverage": "decode.coverage_penalty",
    "decode.no_repeat": "decode.no_repeat_ngram",
    "sound": "audio",
    "sound.speed": "audio.speed_perturbation",
    "sound.augment": "audio.spec_augment",
}

HEAD = [
    "Each row was trained and scored by `python benchmarks/recipes.py EXPERIMENT`; the recipes and "
    "overrides are in `benchmarks/experiments/`. A row has the mean over seeds, their standard "
    "deviation (or the single results, where they are far apart), and the 95 % bootstrap interval "
    "of the first seed. All choices were made on validation sets. `at once` is how many trainings "
    "shared the GPU; each of them then took several times as long as alone. Without it, a training "
    "had the GPU to itself. Published figures are the authors' own; where the protocol differs, a "
    "note says how.",
    "",
]


def groups() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """What is shown of each group that was measured, and its experiments."""
    found = {}
    for group, shown in yaml.safe_load(PUBLISHED.read_text("utf-8")).items():
        path = RESULTS / f"recipes_{group}.json"
        if path.exists():
            kept = json.loads(path.read_text("utf-8"))["experiments"]
            order = list(yaml.safe_load((EXPERIMENTS / f"{group}.yaml").read_text("utf-8")))
            found[group] = shown, {name: kept[name] for name in order if name in kept}
    return found


def pages() -> dict[str, list[str]]:
    return {group: _group(shown, kept) for group, (shown, kept) in groups().items()}


def beside_published() -> list[list[str]]:
    """Of all groups, the rows that have a published figure beside them."""
    rows = []
    for group, (shown, experiments) in groups().items():
        for label, expression in shown["metrics"].items():
            for name, one in experiments.items():
                if not _reported(one, shown) or not _says(shown, label, name):
                    continue
                for _, test, seeds, mean, interval, together, published in _rows(
                    name, one, expression, shown
                ):
                    if published:
                        link = f"[`{name}`](results/{group}.md)"
                        how = f"{label}, {test}"
                        seeds = seeds if "models" in seeds else f"{seeds} seeds"
                        ours = f"{mean} ({seeds})"
                        rows.append(
                            [link, how, ours, interval, together, published, _trained_on(one)]
                        )
    return rows


def _trained_on(one: dict[str, Any]) -> str:
    found = {run["training"]["device"] for run in one["runs"].values() if "training" in run}
    return ", ".join(sorted(device.removeprefix("NVIDIA ") for device in found))


def _group(shown: dict[str, Any], experiments: dict[str, Any]) -> list[str]:
    reported = {name: one for name, one in experiments.items() if _reported(one, shown)}
    tried = {name: one for name, one in experiments.items() if name not in reported}
    lines = [f"# {shown['title']}", "", " ".join(shown["about"].split()), "", *HEAD]
    for label, expression in shown["metrics"].items():
        rows = []
        for name, one in reported.items():
            rows += _rows(name, one, expression, shown) if _says(shown, label, name) else []
        if rows:
            head = [label, "set", "seeds", "mean", "interval", "ensemble", "published"]
            lines += [*table(head, rows), ""]
    lines += _by_group(reported, shown)
    trained = {name: one for name, one in reported.items() if set(one["runs"]) != {ENSEMBLE}}
    metadata = [_metadata(name, one) for name, one in trained.items()]
    head = ["experiment", "parameters", "updates", "training", "hardware", "command"]
    lines += [*table(head, metadata), ""] if metadata else []
    if tried:
        lines += ["Compared on the validation set (of several seeds, the mean):", ""]
        head = ["", *shown["metrics"], "overrides"]
        compared = {name: one for name, one in experiments.items() if _has_valid(one)}
        lines += [*table(head, [_trial(name, one, shown) for name, one in compared.items()]), ""]
    return [*lines, *_notes(shown), ""]


def _by_group(reported: dict[str, Any], shown: dict[str, Any]) -> list[str]:
    """A table for each set, where scores were told apart: a line for each group of items."""
    metric = shown.get("by_group")
    lines: list[str] = []
    if metric is None:
        return lines
    sets = dict.fromkeys(
        test for one in reported.values() for run in one["runs"].values() for test in run["scores"]
    )
    for test in sets:
        cells: dict[str, dict[str, str]] = {}
        for name, one in reported.items():
            runs = [run for unit, run in one["runs"].items() if unit != ENSEMBLE]
            found = [run["scores"].get(test, {}).get("groups", {}) for run in runs]
            for group in dict.fromkeys(group for groups in found for group in groups):
                values = [groups[group][metric]["value"] for groups in found if group in groups]
                spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
                cells.setdefault(group, {})[name] = f"{statistics.mean(values):.2f}{spread}"
        if cells and test != VALID:
            head = [f"{metric.upper()}, {test}", *(f"`{name}`" for name in reported)]
            rows = [
                [group, *(own.get(name, "") for name in reported)] for group, own in cells.items()
            ]
            lines += [*table(head, rows), ""]
    return lines


def _says(shown: dict[str, Any], label: str, name: str) -> bool:
    """Whether what is under a heading means something of an experiment."""
    return not any(fnmatch(name, one) for one in shown.get("not_for", {}).get(label, ()))


def _reported(one: dict[str, Any], shown: dict[str, Any]) -> bool:
    """Whether a test set was looked at; of a corpus that has none, whether there are seeds."""
    sets = {name for run in one["runs"].values() for name in run["scores"]}
    return sets != {VALID} or (shown.get("tested_on") == VALID and len(one["runs"]) > 1)


def _has_valid(one: dict[str, Any]) -> bool:
    return any(VALID in run["scores"] for unit, run in one["runs"].items() if unit != ENSEMBLE)


def _rows(
    name: str, one: dict[str, Any], expression: str, shown: dict[str, Any]
) -> list[list[str]]:
    rows = []
    runs = one["runs"]
    # Models of several experiments together are a row of their own.
    apart = {unit: run for unit, run in runs.items() if unit != ENSEMBLE} or runs
    seeds = [apart[unit] for unit in sorted(apart)]
    for test in dict.fromkeys(test for run in seeds for test in run["scores"]):
        if test == VALID and shown.get("tested_on") != VALID:
            continue
        found = [score for run in seeds if (score := _score(run, test, expression)) is not None]
        if not found:
            continue
        values = [value for value, _, _ in found]
        digits = shown.get("digits", 2)
        _, low, high = found[0]
        joined = runs.get(ENSEMBLE) if apart is not runs else None
        together = None if joined is None else _score(joined, test, expression)
        rows.append(
            [
                f"`{name}`",
                test,
                f"{runs[ENSEMBLE]['members']} models" if apart is runs else str(len(values)),
                _mean(values, digits),
                "" if low is None else f"{low:.{digits}f} to {high:.{digits}f}",
                "" if together is None else f"{together[0]:.{digits}f}",
                _published(shown, name, test, expression),
            ]
        )
    return rows


def _mean(values: list[float], digits: int) -> str:
    """The mean, its deviation, and, where that is large, all of them."""
    mean = statistics.mean(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    deviation = statistics.stdev(values)
    each = f" ({', '.join(f'{value:.1f}' for value in values)})" if deviation > FAR * mean else ""
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}{each}"


def _score(
    run: dict[str, Any], test: str, expression: str
) -> tuple[float, float | None, float | None] | None:
    """Of `exact`, or of `mean exact` (over groups of items), or of `100 - ` one of these."""
    name = expression.removeprefix("100 - ")
    kept = run["scores"].get(test, {})
    metrics = kept.get("mean", {}) if name.startswith("mean ") else kept.get("metrics", {})
    metric = metrics.get(name.removeprefix("mean "))
    if metric is None:
        return None
    value, low, high = metric["value"], metric["low"], metric["high"]
    if name == expression:
        return value, low, high
    return 100 - value, None if high is None else 100 - high, None if low is None else 100 - low


def _published(shown: dict[str, Any], name: str, test: str, expression: str) -> str:
    found = []
    for one in shown.get("published", []):
        if one["metric"] == expression and name in one["beside"]:
            values = one["values"]
            if test in values:
                found.append(f"{values[test]} ({one['who']})")
    return ", ".join(found)


def _metadata(name: str, one: dict[str, Any]) -> list[str]:
    seeds = [run for unit, run in one["runs"].items() if unit != ENSEMBLE]
    alone = [run for run in seeds if run.get("at_once", 1) == 1] or seeds
    training = [run["training"] for run in seeds]
    seconds = statistics.mean(run["training"]["seconds"] for run in alone)
    first, at_once = training[0], max(run.get("at_once", 1) for run in alone)
    beside = f", {at_once} at once" if at_once > 1 else ""
    return [
        f"`{name}`",
        f"{first['parameters']:,}",
        f"{max(metadata['steps'] for metadata in training):,}",
        f"{seconds:,.0f} s{beside}",
        f"{first['device']}, torch {first['torch']}, {first['precision']}",
        f"`{one['command']}`",
    ]


def _trial(name: str, one: dict[str, Any], shown: dict[str, Any]) -> list[str]:
    runs = [run for unit, run in one["runs"].items() if unit != ENSEMBLE]
    scores = [
        [found[0] for run in runs if (found := _score(run, VALID, expression))]
        if _says(shown, label, name)
        else []
        for label, expression in shown["metrics"].items()
    ]
    overrides = [text for text in one["overrides"] if not text.startswith("data.t")]
    overrides = [text for text in overrides if not text.startswith("data.valid")]
    overrides = [re.sub(r"^[\w.]+", lambda key: RENAMED.get(key[0], key[0]), o) for o in overrides]
    said = ", ".join(overrides) or f"as in the recipe `{one['recipe']}`"
    digits = shown.get("digits", 2)
    return [f"`{name}`", *(_mean(values, digits) if values else "" for values in scores), said]


def _notes(shown: dict[str, Any]) -> list[str]:
    """Where the published figures are from, and what is different there."""
    notes = []
    for one in shown.get("published", []):
        said = [one["source"], one["differs"]]
        if quoted := one.get("quoted"):
            said.append(f"As commonly quoted, not seen at its source: {', '.join(quoted)}.")
        notes.append(f"- {one['who']}: {' '.join(' '.join(said).split())}")
    return notes
