"""The best model in the run directory, which only a better one may replace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transduce.checksums import fits
from transduce.errors import CheckpointError
from transduce.storage import read_tensors
from transduce.tasks.folder import WEIGHTS
from transduce.tasks.model import Model
from transduce.training.distributed.processes import Processes

Better = Callable[[str, float, float], bool]
"""Whether, for a metric, one value is better than another."""


class BestModel:
    """The validation metric of the model in a folder, which is stored with its weights.

    A checkpoint is saved after the model, and not after the average at the end. So a resumed run
    may find a better model in the folder than its checkpoint knows of; that one is kept.
    """

    def __init__(self, folder: Path, metric: str, better: Better, ranks: Processes) -> None:
        self.folder, self.metric, self.better, self.ranks = folder, metric, better, ranks
        self.value: float | None = None

    def read(self) -> None:
        """Read the metric of the model in the folder; a model that could not be used may be
        replaced.
        """
        if self.ranks.first and fits(path := self.folder / WEIGHTS):
            try:
                _, facts = read_tensors(path)
                self.value = float(facts["validation"][self.metric])
            except (CheckpointError, KeyError, TypeError, ValueError):
                self.value = None
        self.value = self.ranks.broadcast(self.value)

    def offer(self, model: Model, value: float) -> bool:
        """Save a model unless the folder has one as good; returns whether it was saved."""
        if self.value is not None and not self.better(self.metric, value, self.value):
            return False
        self.value = value
        if self.ranks.first:
            model.save_weights(self.folder, {"validation": {self.metric: value}})
        return True
