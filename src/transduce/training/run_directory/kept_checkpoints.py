"""Checkpoint averaging: the checkpoints that are kept for it, and their mean."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from transduce.recipe import Average
from transduce.storage import make_folder, read_tensors, write_tensors
from transduce.training.optimizer import mean_of
from transduce.training.run_directory.best_model import badness

Kept = list[tuple[int, float]]
"""The update and the validation metric of each kept checkpoint."""


def choose(kept: Kept, step: int, value: float, average: Average, metric: str) -> Kept:
    """The checkpoints to keep once that of `step` is there: the last or best `average.count`."""
    every = [*kept, (step, value)]
    if average.of == "best":
        every.sort(key=lambda entry: badness(metric, entry[1]))
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
