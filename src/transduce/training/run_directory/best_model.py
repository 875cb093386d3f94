"""The best model in the run directory, which only a better one may replace."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from transduce.checksums import fits
from transduce.errors import CheckpointError
from transduce.evaluation.metrics import higher_is_better
from transduce.storage import read_tensors
from transduce.tasks.folder import WEIGHTS
from transduce.training.distributed.processes import Processes


def badness(metric: str, value: float) -> float:
    """A sort key by which the best value comes first; NaN comes last."""
    if math.isnan(value):
        return math.inf
    return -value if higher_is_better(metric) else value


def is_better(metric: str, value: float, than: float) -> bool:
    return badness(metric, value) < badness(metric, than)


class Saves(Protocol):
    """What can write weights into a folder: a model, or an adapter."""

    def save_weights(self, folder: Path, metadata: Mapping[str, Any]) -> None: ...


class BestModel:
    """The validation metric of the model in a folder, which is stored with its weights.

    A checkpoint is saved after the model, and not after the average at the end. So a resumed run
    may find a better model in the folder than its checkpoint knows of; that one is kept.
    """

    def __init__(self, folder: Path, metric: str, ranks: Processes) -> None:
        self.folder, self.metric, self.ranks = folder, metric, ranks
        self.value: float | None = None

    def read(self) -> None:
        """Read the metric of the model in the folder; a model that could not be used may be
        replaced.
        """
        if self.ranks.first and fits(path := self.folder / WEIGHTS):
            try:
                _, metadata = read_tensors(path)
                self.value = float(metadata["validation"][self.metric])
            except (CheckpointError, KeyError, TypeError, ValueError):
                self.value = None
        self.value = self.ranks.broadcast(self.value)

    def offer(self, model: Saves, value: float) -> bool:
        """Save a model unless the folder has one as good; returns whether it was saved."""
        if self.value is not None and not is_better(self.metric, value, self.value):
            return False
        self.value = value
        if self.ranks.first:
            model.save_weights(self.folder, {"validation": {self.metric: value}})
        return True
