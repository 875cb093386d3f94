"""Ranks that do not agree are named, before they train nonsense."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from transduce.data.cache.tokenised import Encoded
from transduce.errors import TrainingError
from transduce.recipe import Recipe
from transduce.training.distributed import agreement
from transduce.training.distributed.agreement import check_data, check_start, check_weights
from transduce.training.distributed.processes import Processes


class Threads(Processes):
    """A rank that is a thread."""

    def __init__(self, rank: int, told: list[Any], barrier: Barrier) -> None:
        super().__init__(rank, len(told))
        self.told, self.meet = told, barrier

    def all_gather(self, own: Any) -> list[Any]:
        self.told[self.rank] = own
        self.meet.wait(10)
        found = list(self.told)
        self.meet.wait(10)
        return found


def together(check: Any, *of_ranks: tuple[Any, ...]) -> None:
    """Run a check on all ranks, each with its own; they end alike, and so does this function."""
    count = len(of_ranks)
    told, barrier = [None] * count, Barrier(count)
    ranks = [Threads(rank, told, barrier) for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        pairs = zip(ranks, of_ranks, strict=True)
        ends = [pool.submit(check, rank, *given).exception for rank, given in pairs]
        errors = [end() for end in ends]
    assert len({str(error) for error in errors}) == 1
    if errors[0] is not None:
        raise errors[0]


def recipe(**train: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "task": "transduce",
            "data": {"train": {"file": "a.tsv"}, "valid": {"file": "b.tsv"}},
            "train": train,
        }
    )


def test_the_same_start() -> None:
    here, there = recipe(), recipe()
    there = there.model_copy(update={"data": there.data.model_copy(update={"folder": "/other"})})
    together(check_start, (here, {"--resume": True}), (there, {"--resume": True}))


@pytest.mark.parametrize(
    ("other", "options", "words"),
    [
        ({"lr": 2e-3}, {"--resume": False}, r"train.lr is 0.002 on rank 2, but 0.001 on rank 0"),
        ({}, {"--resume": True}, r"--resume is True on rank 2, but False on rank 0: start all"),
        (
            {"average": {"count": 3}},
            {"--resume": False},
            r"train.average is None on rank 2|train.average.* on rank 2, but None on rank 0",
        ),
    ],
)
def test_another_recipe(other: dict[str, Any], options: dict[str, Any], words: str) -> None:
    same = (recipe(), {"--resume": False})
    with pytest.raises(TrainingError, match=words):
        together(check_start, same, same, (recipe(**other), options))


def corpus(*targets: list[int]) -> Encoded:
    ids = np.array([token for target in targets for token in target], np.int32)
    offsets = np.cumsum([0, *map(len, targets)])
    numbers = np.arange(len(targets))
    return Encoded(ids, offsets, ids, offsets, numbers, numbers)


def test_other_data(monkeypatch: pytest.MonkeyPatch) -> None:
    same, changed = corpus([4, 5], [6]), corpus([6], [4, 5])
    together(check_data, (same, same), (corpus([4, 5], [6]), same))
    with pytest.raises(TrainingError, match=r"the training data of rank 1 differ from .* rank 0"):
        together(check_data, (same, same), (changed, same))
    with pytest.raises(TrainingError, match="the validation data of rank 2"):
        together(check_data, (same, same), (same, same), (same, changed))
    # Of large arrays, pieces: the last one is among them.
    monkeypatch.setattr(agreement, "PIECES", 3)
    monkeypatch.setattr(agreement, "PIECE", 16)
    rows = [[n] for n in range(100)]
    together(check_data, (corpus(*rows), same), (corpus(*rows), same))
    with pytest.raises(TrainingError, match="training data"):
        together(check_data, (corpus(*rows), same), (corpus(*rows[:-1], [7]), same))


def weights(broken: float = 0.0) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    made = {"encoder.weight": torch.randn(3, 4), "head.weight": torch.randn(2)}
    made["head.weight"][1] += broken
    return made


def test_weights_that_differ_in_one_bit() -> None:
    together(check_weights, (weights(), 7), (weights(), 7), (weights(), 7))
    small = float(np.spacing(np.float32(weights()["head.weight"][1])))
    named = r"weights of rank 2 are wrong at update 7, first in head.weight"
    with pytest.raises(TrainingError, match=named):
        together(check_weights, (weights(), 7), (weights(), 7), (weights(small), 7))
    with pytest.raises(TrainingError, match=r"weights of rank 0 are wrong"):
        together(check_weights, (weights(small), 7), (weights(), 7), (weights(), 7))
    with pytest.raises(TrainingError, match=r"weights of rank 1, or rank 0, are wrong"):
        together(check_weights, (weights(), 7), (weights(small), 7))


def test_one_process_asks_nobody() -> None:
    check_start(Processes(), recipe(), {})
    check_data(Processes(), corpus([4]), corpus([4]))
    check_weights(Processes(), weights(), 1)
