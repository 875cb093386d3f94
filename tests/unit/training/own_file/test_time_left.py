"""Time that is left: how it is used, what is kept, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transduce.evaluation.metrics import Measured
from transduce.recipe import Recipe, read_recipe
from transduce.training.loop import Trained
from transduce.training.own_file import time_left
from transduce.training.own_file.time_left import (
    Rival,
    best_of,
    can_teach,
    report,
    spend,
    uses_of,
)
from transduce.training.own_file.train import next_steps


@pytest.mark.parametrize(
    ("runs", "seeds", "distilled"),
    [(0.9, 0, False), (1.0, 1, False), (3.9, 3, False), (4.0, 2, True), (50.0, 4, True)],
)
def test_what_the_time_of_so_many_runs_is_used_for(
    runs: float, seeds: int, distilled: bool
) -> None:
    assert uses_of(runs, distills=True) == (seeds, distilled)
    assert uses_of(runs, distills=False) == (min(int(runs), 4), False)


def test_recordings_and_copies_are_not_distilled() -> None:
    data = {part: {"name": "cmudict", "split": part} for part in ("train", "valid")}
    plain = {"data": data, "model": {"preset": "gru-attention"}}
    assert can_teach(read_recipe(plain))
    copying = {"preset": "gru-attention", "decoder": {"copying": True}}
    assert not can_teach(read_recipe({**plain, "model": copying}))
    heard = {part: {"file": "x.tsv", "audio": "path"} for part in data}
    speech = {"data": heard, "audio": {}, "model": {"encoder": {"kind": "conformer"}}}
    assert not can_teach(read_recipe(speech))


def rival(name: str, right: int, ensemble: int = 0) -> Rival:
    rows = np.array([[float(n < right), 1.0] for n in range(100)])
    made: Any = object()
    measured = Measured(rows, lambda total: float(100 * total[0] / total[1]), {})
    return Rival(name, made, (made,) * ensemble, measured)


@pytest.mark.parametrize(
    ("first", "together", "kept"),
    [(60, 60, False), (60, 63, False), (60, 65, True), (70, 66, False), (70, 71, True)],
)
def test_an_ensemble_is_kept_only_if_it_is_better_than_one_model(
    first: int, together: int, kept: bool
) -> None:
    """Than the first seed, which would be used without it, and than a seed in the mean."""
    singles = [rival("seed 1", first), rival("seed 2", 130 - first), rival("seed 3", 64)]
    several = rival("ensemble of 3", together, 2)
    best = best_of([singles[0], several], singles, "exact")
    assert best is (several if kept else singles[0])


def test_of_an_error_rate_less_is_better() -> None:
    singles = [rival("seed 1", 60), rival("seed 2", 66), rival("seed 3", 58)]
    low = rival("ensemble of 3", 57, 2)
    assert best_of([singles[0], low], singles, "wer") is low


def test_the_better_of_ensemble_and_distilled_model_is_kept() -> None:
    singles = [rival("seed 1", 60), rival("seed 2", 61)]
    together, student = rival("ensemble of 2", 65, 1), rival("distilled into one", 66)
    assert best_of([singles[0], together, student], singles, "exact") is student
    student = rival("distilled into one", 65)
    assert best_of([singles[0], together, student], singles, "exact") is together


def test_the_report_calls_nothing_better_than_it_is() -> None:
    singles = [rival("seed 1", 60), rival("seed 2", 70)]
    together = rival("ensemble of 2", 62, 1)
    text = "\n".join(report([singles[0], together], singles, "exact", 100, singles[0]))
    assert "65.00 in the mean, from 60.00 to 70.00" in text
    assert "+2.00" in text
    assert "may be chance" in text
    assert "Kept: the first seed, as nothing is better than it and than the mean." in text
    clear = rival("ensemble of 2", 95, 1)
    text = "\n".join(report([singles[0], clear], singles, "exact", 100, clear))
    assert "may be chance" not in text
    assert "Kept: the ensemble." in text


class State:
    def __init__(self, step: int, elapsed: float) -> None:
        self.step, self.elapsed = step, elapsed


def run_of(folder: Path, recipe: Recipe, step: int, elapsed: float = 60.0) -> Trained:
    from transduce.tasks.encoder_decoder import Transducer

    model = Transducer.__new__(Transducer)
    model.recipe = recipe
    state: Any = State(step, elapsed)
    return Trained(folder, model, state, interrupted=False)


@pytest.mark.parametrize(
    ("step", "minutes", "folders"),
    [
        (99, 30, []),  # the time ended it: nothing is left
        (100, 1.5, []),
        (100, 3.5, ["seed-2", "seed-3"]),
        (100, 8, ["seed-2", "seed-3", "seed-4", "seed-5", "distilled"]),
    ],
)
def test_further_seeds_have_the_time_that_is_left(
    step: int, minutes: float, folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = {part: {"name": "cmudict", "split": part} for part in ("train", "valid")}
    settings = {"steps": 100, "minutes": minutes, "r_drop": 1.0}
    recipe = read_recipe({"data": data, "train": settings, "validation": {"decoding": "chosen"}})
    given: list[tuple[str, Recipe]] = []

    def trained(again: Any, folder: Path, **settings: bool) -> Trained:
        given.append((folder.name, read_recipe(again)))
        return run_of(folder, read_recipe(again), 100)

    monkeypatch.setattr(time_left, "train_recipe", trained)
    monkeypatch.setattr(time_left, "_items", lambda recipe, model: [None] * 9)
    monkeypatch.setattr(
        time_left,
        "_measured",
        lambda name, run, others, items, metric: Rival(
            name, run, others, rival("", 60 + len(others)).measured
        ),
    )
    first = run_of(tmp_path, recipe, step)
    ended = spend(first, recipe, minutes, lambda line: None)
    assert [name for name, _ in given] == folders
    assert [again.seed for _, again in given] == list(range(2, 2 + len(folders)))
    left = [60 * (again.train.minutes or 0) for _, again in given]
    assert left == [pytest.approx(60 * (minutes - 1) - 60 * n) for n in range(len(folders))]
    assert all(again.validation.decoding == "fixed" for _, again in given)
    if folders[-1:] == ["distilled"]:
        teacher = given[-1][1].train.teacher
        assert teacher is not None
        assert teacher.models == [str(tmp_path), *(str(tmp_path / one) for one in folders[:-1])]
        assert given[-1][1].train.r_drop == 0
    seeds = [name for name in folders if name.startswith("seed")]
    assert [one.folder.name for one in ended.ensemble] == seeds
    assert ended.folder == tmp_path


@pytest.mark.parametrize(
    ("step", "best", "elapsed", "said"),
    [
        (
            60,
            60,
            60,
            [
                "more time: --minutes 3 (it made 60 of 100 updates; all take about 2 min here)",
                "a search",
            ],
        ),
        (100, 95, 60, ["longer: train.steps=200", "an ensemble of seeds: --minutes 4", "a search"]),
        (100, 50, 20, ["less overfitting: more rows, or model.dropout=0.2", "a search"]),
    ],
)
def test_what_to_try_next(step: int, best: int, elapsed: float, said: list[str]) -> None:
    data = {part: {"name": "cmudict", "split": part} for part in ("train", "valid")}
    recipe = read_recipe({"data": data, "train": {"steps": 100}, "model": {"dropout": 0.1}})
    trained = run_of(Path("runs/x"), recipe, step, elapsed)
    trained.state.best_step = best
    lines = next_steps(recipe, trained, 1.5, Path("runs/x/chosen.yaml"))
    assert len(lines) == len(said)
    assert all(expected in line for line, expected in zip(lines, said, strict=True))
    assert "transduce tune runs/x/chosen.yaml" in lines[-1]
