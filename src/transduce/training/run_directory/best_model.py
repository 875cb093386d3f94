"""The best model in the run directory, which only a better one may replace."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from transduce.checksums import fits
from transduce.errors import CheckpointError
from transduce.evaluation.metrics import higher_is_better
from transduce.recipe import Average
from transduce.storage import make_folder, read_tensors, write_tensors
from transduce.tasks.folder import WEIGHTS
from transduce.training.distributed.processes import Processes
from transduce.training.optimizer import mean_of


def badness(metric: str, value: float) -> float:
    """A sort key by which the best value comes first; NaN comes last."""
    if math.isnan(value):
        return math.inf
    return -value if higher_is_better(metric) else value


def is_better(metric: str, value: float, than: float) -> bool:
    return badness(metric, value) < badness(metric, than)


class Validated(NamedTuple):
    """What a validation found of a model: the metric that decides, and the loss."""

    value: float
    loss: float = math.inf
    """Infinite where it is not known: of a model that an earlier version saved."""

    def rank(self, metric: str) -> tuple[float, float]:
        """A sort key by which the best comes first: by the metric, and of equals by the loss, which
        still tells apart what the metric of few pairs does not."""
        return badness(metric, self.value), badness("loss", self.loss)

    def replaces(self, metric: str, kept: Validated | None) -> bool:
        """Whether the model takes the place of an earlier one, also where both are the same."""
        return kept is None or self.rank(metric) <= kept.rank(metric)


class Saves(Protocol):
    """What can write weights into a folder: a model, or an adapter."""

    def save_weights(self, folder: Path, metadata: Mapping[str, Any]) -> None: ...


class BestModel:
    """What validation found of the model in a folder, which is stored with its weights.

    A checkpoint is saved after the model, and not after the average at the end. So a resumed run
    may find a better model in the folder than its checkpoint knows of; that one is kept.
    """

    def __init__(self, folder: Path, metric: str, ranks: Processes) -> None:
        self.folder, self.metric, self.ranks = folder, metric, ranks
        self.kept: Validated | None = None

    def read(self) -> None:
        """Read it of the model in the folder; a model that could not be used may be replaced."""
        found: list[float] | None = None
        if self.ranks.first and fits(path := self.folder / WEIGHTS):
            try:
                values = read_tensors(path)[1]["validation"]
                found = [float(values[self.metric]), float(values.get("loss", math.inf))]
            except (CheckpointError, KeyError, TypeError, ValueError):
                found = None
        found = self.ranks.broadcast(found)
        self.kept = None if found is None else Validated(*found)

    def offer(self, model: Saves, validated: Validated) -> bool:
        """Save a model unless the folder has a better one; returns whether it was saved."""
        if not validated.replaces(self.metric, self.kept):
            return False
        self.kept = validated
        if self.ranks.first:
            values = {"loss": validated.loss, self.metric: validated.value}
            model.save_weights(self.folder, {"validation": values})
        return True


# ----------------------------------------------------------------------------------------------
# Checkpoint averaging: the checkpoints that are kept for it, and their mean.

Kept = list[tuple[int, float]]
"""The update and the validation metric of each kept checkpoint."""


def choose(kept: Kept, step: int, value: float, average: Average, metric: str) -> Kept:
    """The checkpoints to keep once that of `step` is there: the last or best `average.count`."""
    every = [*kept, (step, value)]
    if average.of == "best":
        every.sort(key=lambda entry: (badness(metric, entry[1]), -entry[0]))  # of equals the later
        return every[: average.count]
    return every[-average.count :]


class KeptCheckpoints:
    """The weights of kept checkpoints, a file each in the run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"

    def write(self, step: int, weights: dict[str, Tensor]) -> None:
        make_folder(self.folder)
        write_tensors(self._path(step), weights, {"step": step})

    def mean(self, kept: Kept) -> dict[str, Tensor]:
        """The mean of their weights."""
        return mean_of([read_tensors(self._path(step))[0] for step, _ in kept])

    def remove_all_but(self, kept: Iterable[tuple[int, float]]) -> None:
        wanted = {self._path(step) for step, _ in kept}
        for path in self.folder.glob("kept-*.safetensors"):
            if path not in wanted:
                path.unlink(missing_ok=True)

    def _path(self, step: int) -> Path:
        return self.folder / f"kept-{step}.safetensors"
