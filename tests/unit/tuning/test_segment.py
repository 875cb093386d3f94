"""Training a trial from rung to rung, for real."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from transduce.errors import DataError
from transduce.recipe import Recipe
from transduce.storage import read_tensors
from transduce.training import train
from transduce.training.run_directory.checkpoint import STATE
from transduce.tuning import segment as module
from transduce.tuning.segment import (
    Outcome,
    is_reached,
    saved_state,
    segment_of,
    share_of,
    train_segment,
)
from transduce.tuning.space import with_values
from tuning_study import Make

TRAINING = import_module("transduce.training.train")  # the package has a function of that name
VALUES = {"train.lr": 0.02, "model.dropout": 0.2}


def test_a_trial_in_segments_is_the_training_in_one(make: Make, tmp_path: Path) -> None:
    recipe = make("train.schedule=cosine")
    outcomes = [
        train_segment(segment_of(recipe, VALUES, tmp_path / "trial", share))
        for share in (1 / 9, 1 / 3, 1.0)
    ]
    assert [(one.end, one.updates) for one in outcomes] == [
        *(("reached", 1), ("reached", 3), ("finished", 9))
    ]
    whole = train(with_values(recipe, VALUES), tmp_path / "whole")
    assert outcomes[-1].best == whole.state.best
    mine, theirs = (read_tensors(tmp_path / name / STATE)[0] for name in ("trial", "whole"))
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not mine[name].equal(theirs[name])] == []


def test_a_segment_that_was_trained_but_not_noted_is_not_trained_again(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = segment_of(make(), VALUES, tmp_path / "trial", 1 / 3)
    before = train_segment(segment)

    def trains(*_: object, **__: object) -> None:
        raise AssertionError("it trained again")

    monkeypatch.setattr(TRAINING, "train_recipe", trains)
    after = train_segment(segment)
    assert (after.end, after.best, after.updates) == ("reached", before.best, 3)


def test_a_trial_ends_with_its_parent(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = iter([True, True, False, False, False])
    monkeypatch.setattr(module, "_parent_lives", lambda: next(lives))
    segment = segment_of(make("validation.every=3"), VALUES, tmp_path / "trial", 1.0)
    stopped = train_segment(segment)
    assert (stopped.end, stopped.updates) == ("stopped", 3)
    assert saved_state(segment.folder)["step"] == 3
    monkeypatch.setattr(module, "_parent_lives", lambda: True)
    assert train_segment(segment).end == "finished"


def test_a_slow_trial_is_compared_when_its_time_has_come(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far from a validation of its own: it is validated there."""
    limited = make("train.minutes=2", "validation.every=9")
    assert [is_reached(limited, 1 / 3, 1, 0, elapsed) for elapsed in (39.0, 40.0)] == [False, True]
    assert not is_reached(make("validation.every=9"), 1 / 3, 8, 0, 100.0)
    assert is_reached(make("validation.every=3"), 1 / 3, 3, 0, 0.0)
    monkeypatch.setattr(module, "is_reached", lambda recipe, share, step, *_: step == 2)
    reached = train_segment(segment_of(limited, VALUES, tmp_path / "trial", 1 / 3))
    assert (reached.end, reached.updates) == ("reached", 2)
    assert reached.best is not None
    assert reached.loss == reached.best  # the metric of this recipe


def test_failures_are_of_the_trial_alone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make("train.steps=40", "train.clip_norm=0", "train.warmup=0", "validation.every=40")
    diverges = segment_of(recipe, {"train.lr": 1e15}, tmp_path / "nan", 1.0)
    found = train_segment(diverges)
    assert found.end == "failed"
    assert "NaN or infinite 10 times in a row" in found.reason
    odd = segment_of(recipe, {"model.width": 7}, tmp_path / "odd", 1.0)
    assert "model.width is 7; it must be even" in train_segment(odd).reason
    huge = segment_of(recipe, {"model.width": 10**7}, tmp_path / "huge", 1.0)
    assert "memory" in train_segment(huge).reason

    def greedy(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")

    monkeypatch.setattr(TRAINING, "train_recipe", greedy)
    full = segment_of(recipe, VALUES, tmp_path / "full", 1.0)
    assert train_segment(full) == Outcome("failed", reason="out of memory on the device")


def test_what_all_trials_would_meet_is_an_error(make: Make, tmp_path: Path) -> None:
    recipe = make()
    (tmp_path / "valid.tsv").unlink()
    with pytest.raises(DataError, match=r"valid\.tsv"):
        train_segment(segment_of(recipe, VALUES, tmp_path / "trial", 1.0))


def test_the_device_of_a_slot(make: Make, tmp_path: Path) -> None:
    segment = segment_of(make("train.device=auto"), VALUES, tmp_path / "trial", 1 / 9)
    assert train_segment(replace(segment, device="cpu")).end == "reached"
    assert train_segment(replace(segment, device="cpu", share=1 / 3)).end == "reached"


def test_the_share_of_a_training(make: Make) -> None:
    def share(recipe: Recipe, step: int = 0, epoch: int = 0, elapsed: float = 0.0) -> float:
        return share_of(recipe, step, epoch, elapsed)

    assert share(make(), step=3) == pytest.approx(1 / 3)
    limited = make("train.epochs=4", "train.minutes=2")
    assert share(limited, step=1, epoch=1) == 0.25
    assert share(limited, step=1, epoch=1, elapsed=60.0) == 0.5
