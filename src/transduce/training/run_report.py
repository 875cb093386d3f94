"""The report of a finished run, with examples of the validation set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transduce.errors import TransduceError
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import Item
from transduce.inspection.report import write_report
from transduce.tasks.transduce import Model, load

SHOWN = 20  # validation pairs that are decoded for it


def write_run_report(model: Model, folder: Path, items: Sequence[Item]) -> str:
    """Write report.html; gives a sentence back where it could not be: the run is worth more."""
    try:
        # An adapter's base may be gone by now; the model in memory has the same weights.
        at_hand = model.changed or model.recipe.train.adapter is not None
        best = model if at_hand else load(folder, str(model.device), members=False)
        some = list(items[:SHOWN])
        found = None
        if some and model.recipe.metrics:
            found = evaluate(best, some, best.recipe.metrics, bootstrap=0)
        return write_report(best, folder, found)
    except (TransduceError, OSError, RuntimeError, ValueError) as error:
        return f"No report was written: {' '.join(str(error).split())[:300]}"
