"""Which checkpoints are kept for averaging, and what their mean is."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from transduce.recipe import Average
from transduce.training.run_directory.best_model import Kept, KeptCheckpoints, choose


def kept_after(values: list[float], average: Average, metric: str) -> list[int]:
    kept: Kept = []
    for step, value in enumerate(values, start=1):
        kept = choose(kept, step, value, average, metric)
    return [step for step, _ in kept]


def test_the_last_ones() -> None:
    assert kept_after([3, 1, 2, 5], Average(of="last", count=2), "loss") == [3, 4]
    assert kept_after([3, 1, 2, 5], Average(of="last", count=9), "loss") == [1, 2, 3, 4]


@pytest.mark.parametrize(("metric", "best"), [("loss", [2, 3]), ("bleu", [4, 1])])
def test_the_best_ones(metric: str, best: list[int]) -> None:
    assert kept_after([3, 1, 2, 5], Average(of="best", count=2), metric) == best


def test_nan_is_never_among_the_best() -> None:
    assert kept_after([math.nan, 3, math.nan, 2], Average(of="best", count=2), "bleu") == [2, 4]
    assert kept_after([math.nan, 3, math.nan, 2], Average(of="best", count=2), "loss") == [4, 2]


def test_their_mean_and_the_files_of_others(tmp_path: Path) -> None:
    checkpoints = KeptCheckpoints(tmp_path)
    for step in (1, 2, 3):
        checkpoints.write(step, {"w": torch.tensor([float(step), 0.0])})
    mean = checkpoints.mean([(1, 0.0), (3, 0.0)])
    assert mean["w"].tolist() == [2.0, 0.0]
    (tmp_path / "state" / "training.safetensors").write_bytes(b"not one of them")
    checkpoints.remove_all_but([(3, 0.0)])
    names = {path.name for path in (tmp_path / "state").iterdir()}
    assert names == {"kept-3.safetensors", "training.safetensors"}


def test_of_equals_the_later_ones() -> None:
    assert kept_after([5, 5, 3, 5], Average(of="best", count=2), "bleu") == [4, 2]
