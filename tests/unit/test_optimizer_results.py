"""The comparison of optimizers: as many learning rates for both, and what its table counts."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
BEST = {"adamw": 2e-3, "muon": 8e-3}


@pytest.fixture
def optimizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    sys.modules.pop("optimizer", None)
    import optimizer  # type: ignore[import-not-found,unused-ignore]

    return optimizer


def study(module: Any, rates: list[float]) -> dict[str, Any]:
    """All runs of a study whose losses are a formula, without training."""
    made = module.Study.__new__(module.Study)
    made.asked = argparse.Namespace(rates=rates, seeds=3, longer=[2.0], jobs=1)
    made.found = {"clock": "seconds", "each": {"adamw": 0.01, "muon": 0.02}, "runs": []}

    def run(wanted: list[tuple[str, float, int, float]]) -> None:
        for name, rate, seed, times in wanted:
            one = {"optimizer": name, "lr": rate, "seed": seed, "times": times, "steps": 100}
            loss = abs(rate / BEST[name] - 1) + seed / 10 - times
            failed: dict[str, Any] = {"failed": "NaN"} if name == "adamw" and rate > 4e-3 else {}
            made.found["runs"].append(one | (failed or {"valid": [[100, loss]], "bleu": None}))

    made._run = run
    found: dict[str, Any] = made.all_runs()
    return found


def test_both_get_a_higher_rate_while_the_best_of_one_is_the_highest(optimizer: Any) -> None:
    found = study(optimizer, [1e-3, 2e-3, 4e-3])
    tried = Counter(run["optimizer"] for run in found["runs"] if run["seed"] == 1)
    rates = {run["lr"] for run in found["runs"] if run["optimizer"] == "adamw"}
    assert rates == {1e-3, 2e-3, 4e-3, 8e-3, 16e-3}
    assert tried == {"adamw": 5 + 1, "muon": 5}  # and one longer run
    later = {(run["optimizer"], run["lr"]) for run in found["runs"] if run["seed"] > 1}
    assert later == {("adamw", 2e-3), ("muon", 8e-3)}


def test_the_table_leaves_out_longer_and_failed_runs(optimizer: Any) -> None:
    found = study(optimizer, [1e-3, 2e-3, 4e-3])
    *_, adamw, muon = optimizer.summary(found)
    assert adamw.startswith("| adamw | 0.0100 | 100 | 0.002 | -0.80 ± 0.10")
    assert muon.startswith("| muon | 0.0200 | 100 | 0.008 | -0.80 ± 0.10")
    (longer,) = optimizer.longer_runs(found)
    assert "2 times the updates (100, 1 s): loss -1.90" in longer
