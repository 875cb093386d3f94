"""Weights & Biases and MLflow: the records of log.jsonl, sent there too (`train.log_to`).

Where they go is said by their own settings: WANDB_MODE=offline, WANDB_PROJECT,
MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and so on. A resumed run goes on in the same place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from transduce.interop.optional_packages import load_package
from transduce.recipe import Recipe
from transduce.storage import write_json

PROJECT = "transduce"  # of W&B, and the experiment of MLflow, where none is set
IDS = Path("state") / "trackers.json"  # the identity of the run in each, to resume it


class Tracker(Protocol):
    """Takes the numbers of a run."""

    def write(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class WandbTracker:
    def __init__(self, recipe: Recipe, folder: Path, resume: bool) -> None:
        known = _ids(folder).get("wandb") if resume else None
        self.run = load_package("wandb", "wandb").init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=recipe.name,
            dir=str(folder),
            id=known,
            resume="allow" if known else None,
            config=recipe.model_dump(mode="json"),
        )
        _keep(folder, "wandb", str(self.run.id))

    def write(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class MlflowTracker:
    """By MLflow's client, which has no global run."""

    def __init__(self, recipe: Recipe, folder: Path, resume: bool) -> None:
        self.client = load_package("mlflow", "mlflow").MlflowClient()
        known = _ids(folder).get("mlflow") if resume else None
        if known is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self.client.get_experiment_by_name(name)
            experiment = self.client.create_experiment(name) if found is None else None
            place = found.experiment_id if experiment is None else experiment
            known = self.client.create_run(place, run_name=recipe.name).info.run_id
            for key, value in _flat(recipe.model_dump(mode="json")).items():
                self.client.log_param(known, key, str(value)[:500])
        self.id = str(known)
        _keep(folder, "mlflow", self.id)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self.client.log_metric(self.id, key, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.id)


TRACKERS: dict[str, type[WandbTracker | MlflowTracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def check_packages(names: Sequence[str]) -> None:
    """Raise ModelError where the package of a tracker is not installed."""
    for name in names:
        load_package(name, name)


def tracker_makers(
    recipe: Recipe, folder: Path, resume: bool
) -> dict[str, Callable[[], WandbTracker | MlflowTracker]]:
    """For each tracker that the recipe asks for, what opens it."""

    def maker(name: str) -> Callable[[], WandbTracker | MlflowTracker]:
        return lambda: TRACKERS[name](recipe, folder, resume)

    return {name: maker(name) for name in recipe.train.log_to}


def _ids(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / IDS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _keep(folder: Path, name: str, identity: str) -> None:
    write_json(folder / IDS, {**_ids(folder), name: identity})


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        found |= _flat(value, f"{dotted}.") if isinstance(value, dict) else {dotted: value}
    return found
