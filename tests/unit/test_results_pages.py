"""The pages of results: what the overview has of the raw figures; whether pages are current."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("make_results")


def section(speed: float, rounds: int, hardware: str = "NVIDIA H200") -> dict[str, Any]:
    row = {
        "system": "ours",
        "cell": "greedy, 64",
        "precision": "int8",
        "round_seconds": [1.0] * rounds,
    }
    row |= {"tokens_per_second": speed, "slowest": speed, "fastest": speed}
    ratio = {"cell": "greedy, 64", "peer": "hf", "times": 15.17, "low": 9.5, "high": 19.09}
    facts = {"hardware": hardware}
    return {"kind": "exact", "size": "base", "facts": facts} | {
        "rows": [row],
        "ratios": [ratio],
    }


def test_the_overview_has_one_row_a_machine_and_none_of_a_single_round(results: ModuleType) -> None:
    several = [section(5.0, 1), section(1017314.0, 3), section(7.0, 3), section(8.0, 2, "a CPU")]
    rows = results._decoding_compared(several)
    assert [row[:4] for row in rows] == [
        ["base", "H200", "greedy, 64", "1,020,000 (1,020,000 to 1,020,000), int8"],
        ["base", "a CPU", "greedy, 64", "8 (8 to 8), int8"],
    ]
    assert rows[0][4:] == ["15.2 times (9.50 to 19.1)", ""]


def test_the_ratio_of_two_systems_has_the_worst_and_the_best_of_both(results: ModuleType) -> None:
    ours = {"tokens_per_second": 4.0, "slowest": 2.0, "fastest": 6.0}
    peer = {"tokens_per_second": 2.0, "slowest": 1.0, "fastest": 4.0}
    assert results.times(ours, peer) == (2.0, 0.5, 6.0)


@pytest.mark.parametrize("change", ["edited", "missing", "left over"])
def test_a_page_that_is_not_current_is_found(
    change: str, results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, folder = tmp_path / "results.md", tmp_path / "results"
    monkeypatch.setattr(results, "PAGE", page)
    monkeypatch.setattr(results, "FOLDER", folder)
    monkeypatch.setattr(results, "benchmark_pages", lambda: {"demo": ["# The demo", ""]})
    monkeypatch.setattr(sys, "argv", ["make_results.py"])
    page.write_text("")
    results.main()
    monkeypatch.setattr(sys, "argv", ["make_results.py", "--check"])
    results.main()
    if change == "edited":
        page.write_text("other")
    elif change == "missing":
        (folder / "demo.md").unlink()
    else:
        (folder / "old.md").write_text("# Old")
    with pytest.raises(SystemExit, match="out of date"):
        results.main()
    monkeypatch.setattr(sys, "argv", ["make_results.py"])
    results.main()
    assert [path.name for path in folder.iterdir()] == ["demo.md"]
