"""The report of a run: one page with all that was measured, made from the run directory."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from transduce import __version__
from transduce.checksums import is_ours, write_listed
from transduce.data.text.pairs import corpus_name
from transduce.errors import TransduceError
from transduce.evaluation.bootstrap import in_brackets
from transduce.evaluation.metrics import TITLES, decimals, higher_is_better, is_metric
from transduce.evaluation.results import STRANGE, Evaluation, item_scores, stored_results
from transduce.evaluation.slices import SliceScores, plain_source
from transduce.inspection.compare_page import marked
from transduce.inspection.drawings import attention_drawing, curves
from transduce.inspection.page import Markup, document, folded, paragraph, section, table
from transduce.recipe import dump_recipe
from transduce.recipe.tasks import TASK_RULES
from transduce.tasks.folder import RUN_REPORT, read_metrics
from transduce.tasks.transduce import Model

CONFUSIONS = 10  # words of each part that are confused most
EXAMPLES = 5  # of the best, and of the worst
DRAWN = 3  # whose attention is shown
# Watts of a whole device under load, as its maker states them; for the estimate of energy.
WATTS = {"H200": 700, "H100": 700, "A100": 400, "V100": 300, "A10": 150, "L4": 72, "T4": 70}
GPU_WATTS, CPU_WATTS = 300, 100


def write_report(
    model: Model, folder: Path, evaluation: Evaluation | None = None, overwrite: bool = False
) -> str:
    """Write report.html; gives a sentence back where a person's own file is in its place."""
    path = folder / RUN_REPORT
    if path.exists() and not is_ours(path) and not overwrite:
        return f"{path} is your own and stays as it is: no report was written (see --overwrite)."
    write_listed(path, report_page(model, folder, evaluation))
    return ""


def report_page(model: Model, folder: Path, evaluation: Evaluation | None = None) -> str:
    """All of it as HTML; what is missing in the folder is left out."""
    metrics, log = read_metrics(folder), read_records(folder / "log.jsonl")
    recipe = model.recipe
    parameters = sum(p.numel() for p in model.network.parameters())
    about = TASK_RULES[recipe.task].about
    lead = f"A {about} of {parameters:,} parameters, trained with transduce."
    parts = [
        section("Scores", *_scores(metrics)),
        *_slices(metrics, evaluation),
        *_errors(evaluation),
        *_curves(log),
        *_examples(model, evaluation),
        *_started(metrics),
        section("Data", *_data(model, metrics)),
        section("Time, energy and environment", *_environment(metrics)),
        section("Recipe", folded("Every key", dump_recipe(recipe))),
    ]
    return document(f"Report of {recipe.name}", lead, parts)


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a log, as far as they can be read."""
    records = []
    with suppress(OSError):
        for line in path.read_text("utf-8", errors="replace").splitlines():
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict):
                    records.append(record)
    return records


# ----------------------------------------------------------------------------- scores and slices


def _scores(metrics: dict[str, Any]) -> list[Markup]:
    rows = [
        [
            one.split,
            f"{TITLES.get(one.metric, one.metric)} ({one.better} is better)",
            f"{one.items:,}",
            f"{one.value:.{decimals(one.metric)}f}",
            in_brackets(one.low, one.high, f".{decimals(one.metric)}f").strip(),
        ]
        for one in stored_results(metrics)
    ]
    said = []
    with suppress(*STRANGE):
        training = metrics["training"]
        best = ", ".join(f"{key} {value:.4g}" for key, value in training["best"].items())
        said.append(paragraph(f"Best in validation: {best}, at update {training['best_step']:,}."))
    if not rows:
        return [
            *said,
            paragraph("Not evaluated yet. transduce evaluate writes the scores here.", "note"),
        ]
    return [*said, table(["set", "metric", "items", "value", "95 % interval"], rows, text=2)]


def _slices(metrics: dict[str, Any], evaluation: Evaluation | None) -> list[Markup]:
    made = []
    if evaluation is not None and evaluation.by_slice is not None:
        made.append(slice_section(evaluation.name, evaluation.by_slice))
    return made


def slice_section(name: str, scores: SliceScores) -> Markup:
    """A table of slices, with the gap between the best and the worst."""
    head, *rows = scores.rows()
    gaps = [paragraph(f"{one[0].upper()}{one[1:]}.") for one in scores.gap_sentences()]
    return section(f"Slices of {name or 'the items'}", table(head, rows), *gaps)


def _errors(evaluation: Evaluation | None) -> list[Markup]:
    """Of word error rates: the kinds of errors, and the words that are confused most, of all items
    and of each slice."""
    if evaluation is None:
        return []
    parts = {"all": evaluation.metrics}
    if evaluation.by_slice is not None:
        parts |= evaluation.by_slice.metrics
    made = []
    for name in (key for key, one in evaluation.metrics.items() if "confused" in one.details):
        counts: list[list[object]] = []
        words: list[list[object]] = []
        for part, metrics in parts.items():
            details = metrics[name].details
            kinds = ("reference_length", "substitutions", "deletions", "insertions")
            counts.append([part, *(f"{details[kind]:,}" for kind in kinds)])
            for reference, predicted, count in details["confused"][:CONFUSIONS]:
                words.append([part, reference, predicted, f"{count:,}"])
        steps = evaluation.metrics[name].details.get("normalize")
        about = f"Normalised: {', '.join(steps)}. " if steps else ""
        made.append(
            section(
                f"Errors by {TITLES.get(name, name)}",
                table(["items", "words", "substitutions", "deletions", "insertions"], counts),
                paragraph(f"{about}An empty cell: the word is missing, or was inserted.", "note"),
                table(["items", "reference", "prediction", "times"], words, text=3),
            )
        )
    return made


# -------------------------------------------------------------------------------------- curves


def _curves(log: Sequence[dict[str, Any]]) -> list[Markup]:
    """Losses in nats per token, without label smoothing, of training and validation together."""

    def line(kind: str, key: str) -> list[tuple[float, float]]:
        points = []
        for record in log:
            step, value = record.get("step"), record.get(key)
            if record.get("kind") == kind and _is_number(step) and _is_number(value):
                points.append((float(step), float(value)))  # type: ignore[arg-type]
        return points

    losses = {"training": line("train", "loss"), "validation": line("valid", "loss")}
    keys = {
        key
        for record in log
        if record.get("kind") == "valid"
        for key in record
        if is_metric(key) and key != "loss"
    }
    figures = [
        curves(
            losses,
            "loss: nats per target token, without label smoothing; training with "
            "dropout, validation without",
        )
    ]
    figures += [
        curves({TITLES.get(key, key): line("valid", key)}, f"{TITLES.get(key, key)} in validation")
        for key in sorted(keys)
        if len(line("valid", key)) > 1
    ]
    shown = [figure for figure in figures if figure]
    return [section("Learning curves", *shown)] if shown else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# ------------------------------------------------------------------------------------ examples


def _examples(model: Model, evaluation: Evaluation | None) -> list[Markup]:
    """The best and the worst items by the first metric, and what a few attend to."""
    if evaluation is None or not evaluation.outputs:
        return []
    scores = item_scores(evaluation.rows, len(evaluation.items))
    metric = next(iter(scores), None)
    if metric is None:
        return []
    sign = 1 if higher_is_better(metric) else -1
    values = scores[metric]
    order = sorted(range(len(values)), key=lambda place: -sign * values[place])
    count = min(EXAMPLES, (len(order) + 1) // 2)
    title = TITLES.get(metric, metric)
    made = [
        section(
            f"{name} examples",
            paragraph(
                f"By {title} of each by itself. Marked: parts that are not in the reference.",
                "note",
            ),
            _example_table(evaluation, places, values, title, model.recipe.audio is not None),
        )
        for name, places in (("Best", order[:count]), ("Worst", order[::-1][:count]))
    ]
    chosen = [*order[::-1][:1], *order[: DRAWN - 1]]
    return made + _attention(model, [evaluation.items[place].source for place in chosen])


def _example_table(
    evaluation: Evaluation, places: Sequence[int], values: Sequence[float], title: str, audio: bool
) -> Markup:
    rows: list[list[object]] = []
    for place in places:
        item, output = evaluation.items[place], evaluation.outputs[place]
        said = marked(item.references[0], output.text)
        source = plain_source(item)
        source = Path(source).name if audio else source  # of a file, not where it lies
        rows.append([source, item.references[0], said, f"{values[place]:.1f}"])
    return table(["source", "reference", "prediction", title], rows, text=3)


def _attention(model: Model, sources: list[str]) -> list[Markup]:
    try:
        outputs = model.run(sources, attention=True)
    except (TransduceError, TypeError):
        return []
    drawn = [attention_drawing(output, model.recipe.name) for output in outputs]
    drawn = [one for one in drawn if one]
    about = paragraph("The mean of all layers and heads; rows are what was written.", "note")
    return [section("Attention of a few examples", about, *drawn)] if drawn else []


# ------------------------------------------------------------------------- data and environment


def _data(model: Model, metrics: dict[str, Any]) -> list[Markup]:
    data = model.recipe.data
    rows: list[list[object]] = []
    counts = metrics.get("training", {}).get("data", {}) if _has_training(metrics) else {}
    for name, corpus in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        if corpus is None:
            continue
        found = counts.get(name) if isinstance(counts, dict) else None
        found = found if isinstance(found, dict) else {}
        numbers = [found.get(key) for key in ("pairs", "source_tokens", "target_tokens")]
        shown = [f"{one:,}" if _is_number(one) else "" for one in numbers]
        rows.append([name, corpus_name(corpus), *shown])
    made = [table(["set", "corpus", "pairs", "source tokens", "target tokens"], rows, text=2)]
    sizes = [len(tokens) for tokens in (model.source_tokens, model.target_tokens)]
    made.append(paragraph(f"Vocabulary: {sizes[0]:,} source and {sizes[1]:,} target tokens."))
    return made


def _started(metrics: dict[str, Any]) -> list[Markup]:
    """The model that training started from, and what it trained of it."""
    with suppress(*STRANGE):
        start = metrics["training"]["start"]
        keys = ("part", "parameters", "loaded", "trained")
        rows = [[row[key] for key in keys] for row in start["parts"]]
        said = (
            f"{start['name']} ({start['from']}), SHA-256 of its weights "
            f"{start['fingerprint'][:12]}; {start['trained_parameters']:,} parameters were trained."
        )
        return [section("Started from", paragraph(said), table(list(keys), rows, text=1))]
    return []


def _has_training(metrics: dict[str, Any]) -> bool:
    return isinstance(metrics.get("training"), dict)


def energy_estimate(seconds: float, device: str, processes: int = 1) -> str:
    """Hours times watts, both stated: it is an estimate, nothing was measured."""
    if "CPU" in device:
        watts, of = CPU_WATTS, "a CPU with its machine"
    else:
        known = next((name for name in WATTS if name in device), None)
        watts, of = (GPU_WATTS, "a GPU") if known is None else (WATTS[known], f"an {known}")
    hours = seconds / 3600
    used = hours * watts * max(processes, 1) / 1000
    times = "" if processes <= 1 else f" × {processes} processes"
    return (
        f"{used:.3g} kWh, an estimate and not measured: {hours:.3g} h × {watts} W assumed for {of}"
        f"{times}, all the time under full load"
    )


def _environment(metrics: dict[str, Any]) -> list[Markup]:
    rows: list[list[object]] = []
    with suppress(*STRANGE):
        training = metrics["training"]
        rows += [
            ["training", f"{training['steps']:,} updates in {training['seconds'] / 60:.1f} minutes"]
        ]
        rows += [["device", f"{training['device']}, {training['precision']}"]]
        processes = int(training.get("processes", 1))
        rows += [
            ["energy", energy_estimate(training["seconds"], str(training["device"]), processes)]
        ]
        rows += [["torch of the training", str(training["torch"])]]
    rows += [
        ["report made with", f"transduce {__version__}, Python {sys.version.split()[0]}"],
        ["on", f"{platform.system()} {platform.machine()}"],
    ]
    return [table(["", ""], rows, text=2)]
