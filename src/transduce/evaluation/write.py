"""Results of an evaluation in a model folder: metrics.json and the hypotheses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transduce.checksums import is_ours, write_listed
from transduce.errors import DataError
from transduce.evaluation.metrics import Metric
from transduce.evaluation.result import Evaluation
from transduce.tasks.folder import update_metrics


def write_evaluation(folder: Path, split: str, evaluation: Evaluation, **facts: Any) -> None:
    """Write the metrics to metrics.json under `split`, the hypotheses to SPLIT.hypotheses.txt."""
    if evaluation.groups:
        facts["mean"] = {name: metric.to_json() for name, metric in evaluation.mean.items()}
        facts["groups"] = {
            group: {name: _shortly(metric) for name, metric in metrics.items()}
            for group, metrics in evaluation.groups.items()
        }
    if evaluation.by_slice is not None:
        facts["slices"] = evaluation.by_slice.to_json()
    write_metrics(folder, split, evaluation.metrics, len(evaluation.items), **facts)
    # One hypothesis in each line: line breaks inside would shift all that follow.
    lines = [" ".join(output.text.splitlines()) for output in evaluation.outputs]
    path = folder / f"{split}.hypotheses.txt"
    if path.exists() and not is_ours(path):
        raise DataError(
            f"{path} was changed since transduce wrote it, and is not replaced: move it away to "
            f"get the new hypotheses; the metrics are in metrics.json"
        )
    write_listed(path, "\n".join(lines) + "\n")


def _shortly(metric: Metric) -> dict[str, Any]:
    return {"value": metric.value, "low": metric.low, "high": metric.high}


def write_metrics(
    folder: Path, split: str, metrics: dict[str, Metric], items: int, **facts: Any
) -> None:
    """Put metrics and what else is known of a measurement into metrics.json."""
    measured = {name: metric.to_json() for name, metric in metrics.items()}
    update_metrics(folder, split, {"items": items, **facts, "metrics": measured})
