"""The model in a folder is replaced by a better one alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tiny_models import tiny
from transduce.storage import read_tensors
from transduce.tasks.folder import WEIGHTS
from transduce.training.distributed.processes import Processes
from transduce.training.run_directory.best_model import BestModel, Validated


@pytest.mark.parametrize(
    ("metric", "values"), [("loss", [3.0, 2.0, 1.0]), ("bleu", [1.0, 2.0, 3.0])]
)
def test_only_better_ones_are_stored(tmp_path: Path, metric: str, values: list[float]) -> None:
    worst, middle, best = values
    stored = BestModel(tmp_path, metric, Processes())
    stored.read()
    assert stored.kept is None
    for value, kept in ((middle, True), (worst, False), (best, True), (middle, False)):
        assert stored.offer(tiny(seed=int(value)), Validated(value, value)) == kept
    assert read_tensors(tmp_path / WEIGHTS)[1]["validation"] == {"loss": best, metric: best}
    resumed = BestModel(tmp_path, metric, Processes())
    resumed.read()
    assert resumed.kept == Validated(best, best)
    assert not resumed.offer(tiny(), Validated(middle, 0.0))
    assert not resumed.offer(tiny(), Validated(math.nan, 0.0))


@pytest.mark.parametrize(
    ("loss", "kept"), [(0.5, True), (1.0, True), (1.5, False), (math.nan, False)]
)
def test_of_equals_the_lower_loss_is_kept_and_then_the_later(
    tmp_path: Path, loss: float, kept: bool
) -> None:
    """Also by a run that was resumed, and has the loss from the file alone."""
    BestModel(tmp_path, "exact", Processes()).offer(tiny(seed=1), Validated(50.0, 1.0))
    resumed = BestModel(tmp_path, "exact", Processes())
    resumed.read()
    assert resumed.offer(tiny(seed=2), Validated(50.0, loss)) is kept


def test_a_model_of_an_earlier_version_has_no_loss(tmp_path: Path) -> None:
    tiny().save_weights(tmp_path, {"validation": {"exact": 50.0}})
    stored = BestModel(tmp_path, "exact", Processes())
    stored.read()
    assert not stored.offer(tiny(), Validated(49.0, 0.1))
    assert stored.offer(tiny(), Validated(50.0, 3.0))


def test_a_value_that_is_not_a_number_is_beaten(tmp_path: Path) -> None:
    stored = BestModel(tmp_path, "loss", Processes())
    assert stored.offer(tiny(), Validated(math.nan))
    resumed = BestModel(tmp_path, "loss", Processes())
    resumed.read()
    assert resumed.offer(tiny(), Validated(5.0))


def test_what_cannot_be_used_is_replaced(tmp_path: Path) -> None:
    stored = BestModel(tmp_path, "loss", Processes())
    stored.offer(tiny(), Validated(1.0, 1.0))
    other = BestModel(tmp_path, "chrf", Processes())
    other.read()
    assert other.kept is None
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:-3])
    resumed = BestModel(tmp_path, "loss", Processes())
    resumed.read()
    assert resumed.kept is None
    assert resumed.offer(tiny(), Validated(2.0, 2.0))
