"""The table of benchmarks/choices.py: what is compared, and by which metric."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("choices", None)
    import choices  # type: ignore[import-not-found,unused-ignore]

    return choices


def row(valid: float, test: float, finer: tuple[float, float] | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"metric": "exact", "valid": valid, "test": test}
    made["higher_is_better"] = True
    if finer is not None:
        per = {"metric": "per", "valid": finer[0], "test": finer[1], "higher_is_better": False}
        made["finer"] = per
    return made


def cells(
    choices: Any, rows: dict[str, dict[str, Any]], settings: dict[str, int]
) -> list[list[str]]:
    lines = choices.table(rows, settings)
    return [line.strip("| ").split(" | ") for line in lines[2:]]


def test_the_best_of_the_search_is_that_of_the_validation_set(choices: Any) -> None:
    rows = {
        "corpus-1000 | chosen | 1": row(50, 40),
        "corpus-1000 | one, rate × 2 | 1": row(60, 80),  # as good
        "corpus-1000 | one | 1": row(60, 50),
        "corpus-1000 | other | 1": row(40, 80),
        "g2p-gre-1000 | chosen | 1": row(50, 90),
        "g2p-gre-1000 | one | 1": row(60, 100),
        "cut-off-100 | chosen | 1": row(50, 40),
        "cut-off-100 | one | 1": row(50, 40),
    }
    found = cells(choices, rows, {"corpus-1000": 4, "g2p-gre-1000": 2, "cut-off-100": 3})
    assert found[0] == ["corpus-1000", "exact", "40.00", "50.00", "one", "20.0 %"]
    assert found[1][5] == "10.0 %"
    assert [one[0] for one in found[2:]] == [
        "tuned on: mean loss 20.0 %, largest 20.0 %",
        "held out: mean loss 10.0 %, largest 10.0 %",
    ]


def test_other_seeds_are_compared_apart(choices: Any) -> None:
    """The first seed alone decides which is the best: only it has the whole search."""
    rows = {
        "corpus-1000 | chosen | 1": row(50, 40),
        "corpus-1000 | chosen | 2": row(50, 44),
        "corpus-1000 | chosen | 3": row(50, 42),
        "corpus-1000 | one | 1": row(60, 50),
        "corpus-1000 | one | 2": row(10, 40),
        "corpus-1000 | one | 3": row(10, 46),
        "corpus-1000 | other | 1": row(55, 80),
        "single-1000 | chosen | 1": row(50, 99),
        "single-1000 | one | 1": row(60, 100),
    }
    found = cells(choices, rows, {"corpus-1000": 3, "single-1000": 2})
    assert found[0][3:] == ["50.00", "one", "20.0 %", "0.0 %", "9.5 %"]
    assert found[2] == [
        "tuned on: mean loss 10.5 %, largest 20.0 %; once more: mean loss 0.0 %, largest 0.0 %; "
        "between seeds: mean difference 9.5 %, largest 9.5 %"
    ]


def test_the_chosen_and_the_best_of_whole_searches_are_trained_again(choices: Any) -> None:
    rows = {
        "a-100 | chosen | 1": row(50, 40),
        "a-100 | one | 1": row(60, 50),
        "a-100 | other | 1": row(40, 80),
        "b-100 | chosen | 1": row(50, 40),
        "b-100 | one | 1": row(50, 40),  # the chosen one itself
        "b-100 | other | 1": row(40, 30),
        "cut-off-100 | chosen | 1": row(50, 40),
        "cut-off-100 | one | 1": row(60, 50),
    }
    assert choices.again(rows, {"a-100": 3, "b-100": 3, "cut-off-100": 3}, 3) == [
        "a-100 | chosen | 2",
        "a-100 | one | 2",
        "a-100 | chosen | 3",
        "a-100 | one | 3",
        "b-100 | chosen | 2",
        "b-100 | chosen | 3",
    ]
    assert choices.again(rows, {}, 1) == []


def test_where_hardly_an_output_is_right_the_finer_metric_is_compared(choices: Any) -> None:
    rows = {
        "corpus-100 | chosen | 1": row(2, 1, (50, 50)),
        "corpus-100 | one | 1": row(1, 3, (60, 60)),
        "corpus-100 | other | 1": row(3, 2, (40, 40)),
    }
    assert cells(choices, rows, {"corpus-100": 3})[0] == [
        *("corpus-100", "per", "50.00", "40.00", "other", "25.0 %")
    ]
    rows["corpus-100 | one | 1"]["valid"] = 10
    assert cells(choices, rows, {"corpus-100": 3})[0][1] == "exact"


def test_the_chosen_recipe_with_other_values(choices: Any) -> None:
    recipe = {
        "model": {"dropout": 0.3},
        "train": {"steps": 1000, "warmup": 100, "lr": 4e-3},
        "data": {"tokens": {"both": {"size": 1000}}},
    }
    changes = "train.steps=x2 train.lr=x0.5 model.dropout=0.2 data.tokens.both.bpe_dropout=0.1"
    assert choices.changed(recipe, changes) == {
        "model": {"dropout": 0.2},
        "train": {"steps": 2000, "warmup": 200, "lr": 2e-3},  # as long a warm-up, relatively
        "data": {"tokens": {"both": {"size": 1000, "bpe_dropout": 0.1}}},
    }
    assert recipe["train"]["steps"] == 1000
