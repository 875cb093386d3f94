"""W&B and MLflow get what log.jsonl gets; with modules in their place that note what they get."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from transduce.errors import ModelError
from transduce.recipe import Recipe
from transduce.training.log import Log, check_packages, tracker_makers

DATA = {split: {"name": "copy", "split": split} for split in ("train", "valid")}


class FakeWandb(SimpleNamespace):
    """As much of W&B as is used."""

    def __init__(self) -> None:
        super().__init__(started=[], logged=[], finished=0, broken=False)

    def init(self, **settings: Any) -> Any:
        self.started.append(settings)
        return SimpleNamespace(id=settings["id"] or "run-1", log=self.log, finish=self.finish)

    def log(self, values: dict[str, float], step: int) -> None:
        if self.broken:
            raise OSError("the network\n is gone")
        self.logged.append((step, values))

    def finish(self) -> None:
        self.finished += 1


class FakeMlflow(SimpleNamespace):
    """As much of MLflow as is used; it is its own client."""

    def __init__(self) -> None:
        super().__init__(runs=[], params={}, logged=[], ended=[], experiments={})

    def MlflowClient(self) -> FakeMlflow:
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return self.experiments.get(name)

    def create_experiment(self, name: str) -> str:
        self.experiments[name] = SimpleNamespace(experiment_id=f"of {name}")
        return f"of {name}"

    def create_run(self, experiment: str, run_name: str) -> Any:
        self.runs.append((experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id=f"run-{len(self.runs)}"))

    def log_param(self, run: str, key: str, value: str) -> None:
        self.params[key] = value

    def log_metric(self, run: str, key: str, value: float, step: int) -> None:
        self.logged.append((run, step, key, value))

    def set_terminated(self, run: str) -> None:
        self.ended.append(run)


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return fake


def logged(folder: Path, names: list[str], *, resume: bool = False, step: int = 2) -> list[str]:
    """Write two records; the sentences that were printed."""
    reported: list[str] = []
    train = {"log_to": names, "lr": 0.5}
    recipe = Recipe.model_validate({"name": "tea", "data": DATA, "train": train})
    (folder / "state").mkdir(exist_ok=True)
    log = Log(folder, step - 2 if resume else 0, reported.append)
    log.open()
    makers: dict[str, Callable[[], Any]] = dict(tracker_makers(recipe, folder, resume))
    log.open_trackers(makers)
    log.write("train", {"step": step - 1, "loss": 3.5, "note": "text", "spike": False})
    log.write("valid", {"step": step, "loss": float("nan"), "bleu": 12.0, "best": True})
    log.close()
    return reported


def test_both_get_the_numbers_of_the_log(
    tmp_path: Path, wandb: FakeWandb, mlflow: FakeMlflow
) -> None:
    assert logged(tmp_path, ["wandb", "mlflow"]) == []
    assert wandb.started[0]["name"] == "tea"
    assert wandb.started[0]["config"]["train"]["lr"] == 0.5
    assert wandb.logged == [
        (1, {"train/loss": 3.5, "train/spike": False}),
        (2, {"valid/bleu": 12.0}),
    ]
    assert wandb.finished == 1
    assert mlflow.runs == [("of transduce", "tea")]
    assert mlflow.params["train.lr"] == "0.5"
    assert ("run-1", 1, "train/loss", 3.5) in mlflow.logged
    assert ("run-1", 2, "valid/bleu", 12.0) in mlflow.logged
    assert mlflow.ended == ["run-1"]


def test_a_resumed_run_goes_on_in_the_same_place(
    tmp_path: Path, wandb: FakeWandb, mlflow: FakeMlflow
) -> None:
    logged(tmp_path, ["wandb", "mlflow"])
    logged(tmp_path, ["wandb", "mlflow"], resume=True, step=4)
    assert [(one["id"], one["resume"]) for one in wandb.started] == [
        (None, None),
        ("run-1", "allow"),
    ]
    assert len(mlflow.runs) == 1
    assert {run for run, *_ in mlflow.logged} == {"run-1"}
    logged(tmp_path, ["mlflow"])  # from the beginning: another run
    assert len(mlflow.runs) == 2


def test_a_tracker_that_fails_does_not_stop_training(
    tmp_path: Path, wandb: FakeWandb, mlflow: FakeMlflow
) -> None:
    wandb.broken = True
    assert logged(tmp_path, ["wandb", "mlflow"]) == ["wandb logs are off: the network is gone"]
    assert len(mlflow.logged) == 3
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2


def test_a_missing_package_is_reported_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModelError, match=r"pip install '\.\[wandb\]'"):
        check_packages(["wandb"])
