"""The model in a folder is replaced by a better one alone."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tiny_models import tiny
from transduce.storage import read_tensors
from transduce.tasks.folder import WEIGHTS
from transduce.training.distributed.processes import Processes
from transduce.training.run_directory.best_model import BestModel


@pytest.mark.parametrize(
    ("metric", "values"), [("loss", [3.0, 2.0, 1.0]), ("bleu", [1.0, 2.0, 3.0])]
)
def test_only_better_ones_are_stored(tmp_path: Path, metric: str, values: list[float]) -> None:
    worst, middle, best = values
    stored = BestModel(tmp_path, metric, Processes())
    stored.read()
    assert stored.value is None
    for value, kept in ((middle, True), (worst, False), (middle, False), (best, True)):
        assert stored.offer(tiny(seed=int(value)), value) == kept
    assert read_tensors(tmp_path / WEIGHTS)[1]["validation"] == {metric: best}
    resumed = BestModel(tmp_path, metric, Processes())
    resumed.read()
    assert resumed.value == best
    assert not resumed.offer(tiny(), middle)
    assert not resumed.offer(tiny(), math.nan)


def test_a_value_that_is_not_a_number_is_beaten(tmp_path: Path) -> None:
    stored = BestModel(tmp_path, "loss", Processes())
    assert stored.offer(tiny(), math.nan)
    resumed = BestModel(tmp_path, "loss", Processes())
    resumed.read()
    assert resumed.offer(tiny(), 5.0)


def test_what_cannot_be_used_is_replaced(tmp_path: Path) -> None:
    stored = BestModel(tmp_path, "loss", Processes())
    stored.offer(tiny(), 1.0)
    other = BestModel(tmp_path, "chrf", Processes())
    other.read()
    assert other.value is None
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(whole[:-3])
    resumed = BestModel(tmp_path, "loss", Processes())
    resumed.read()
    assert resumed.value is None
    assert resumed.offer(tiny(), 2.0)
