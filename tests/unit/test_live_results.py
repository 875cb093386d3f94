"""Tables of live speech: means over seeds, of the right rows."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def live_results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delitem(sys.modules, "live_results", raising=False)
    return importlib.import_module("live_results")


def row(model: str, chunk: float | None, rate: float, ended: int) -> dict[str, Any]:
    scores = {"cer": {"name": "cer", "value": rate}}
    times = {"p50": rate / 10, "p95": rate / 5}
    found = {"model": model, "chunk": chunk, "recordings": 4, "scores": scores, "finish": times}
    if chunk is None:
        return found
    final = {**times, "count": ended}
    live = {"first": times, "final": final, "real_time_factor": rate / 100}
    return {**found, **live, "finish_scores": scores}


def test_rows_of_a_table_are_means_over_seeds(live_results: ModuleType) -> None:
    rows = [
        row("b-1", 640.0, 30.0, 4),
        row("a-live-1", None, 8.0, 0),
        row("a-live-1", 160.0, 10.0, 1),
        row("a-live-2", 160.0, 14.0, 4),
        row("a-live-2", None, 9.0, 0),
    ]
    metadata = {"command": "c", "hardware": "h, 1 thread", "threads": 1, "torch": "2"}
    lines = live_results._latency({"facts": metadata, "rows": rows})
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "| `" in line]
    assert [one[:3] for one in cells] == [
        ["`b`", "640 ms", "cer 30.0"],
        ["`a-live`", "160 ms", "cer 12.0 (10.0 to 14.0)"],
        ["`a-live`", "whole", "cer 8.5 (8.0 to 9.0)"],
    ]
    # Of two seeds 1 and 4 of 4 utterances ended; 1.0 and 1.4 s; 0.10 and 0.14 of real time.
    assert cells[1][4:] == ["1.20 s (2.40 s)"] * 2 + ["62 %", "1.20 s (2.40 s)", "0.120"]
    assert cells[2][4:] == ["", "", "", "0.85 s (1.70 s)", ""]


def test_the_figure_has_a_point_for_each_chunk(live_results: ModuleType) -> None:
    rows = [row(f"a-{seed}", chunk, 10.0, 4) for seed in (1, 2) for chunk in (160.0, 640.0, None)]
    assert live_results.latency_figure({"rows": rows}).count("<circle") == 2
