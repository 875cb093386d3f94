"""Tables of live speech: means over seeds, of the right rows."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


BENCHMARKS = TOOLS.parent / "benchmarks"


@pytest.fixture
def live_results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delitem(sys.modules, "live_results", raising=False)
    return importlib.import_module("live_results")


@pytest.fixture
def live_kinds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    for folder in (TOOLS, BENCHMARKS):
        monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "live_kinds", raising=False)
    return importlib.import_module("live_kinds")


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


def of_kind(kind: str, seed: int, error: float, first: float | None = 0.5) -> dict[str, Any]:
    scores = {"file": {"wer": error, "cer": error / 2}, "live": {"wer": error, "cer": error / 2}}
    times = {"first": first, "final": 1.0, "revisions": 0.0, "real_time_factor": 0.1}
    return {"kind": kind, "seed": seed, "file": error, "live": error, "scores": scores, **times}


def test_runs_of_several_seeds_stand_together(live_kinds: ModuleType, tmp_path: Path) -> None:
    """A later run of other seeds or kinds adds to the file, one of the same replaces its own row,
    and one of another recipe is refused."""
    rows: list[dict[str, Any]] = []
    for new in [
        of_kind("transducer", 2, 4.0),
        of_kind("transducer", 1, 9.0),
        of_kind("ctc", 2, 70.0),
        of_kind("transducer", 1, 2.0),
    ]:
        rows = live_kinds.together(rows, new)
    assert [(one["kind"], one["seed"], one["file"]) for one in rows] == [
        ("ctc", 2, 70.0),
        ("transducer", 1, 2.0),
        ("transducer", 2, 4.0),
    ]
    lines = [line.strip("| ").split(" | ") for line in live_kinds.table(rows)[1:].split("\n")[2:]]
    assert [line[:2] for line in lines] == [["ctc", "70.00"], ["transducer", "3.00 ± 1.41"]]
    path = tmp_path / "kinds.json"
    assert live_kinds.of_earlier_runs(path, {}) == []
    path.write_text(json.dumps({"recipe": "a", "rows": rows}), "utf-8")
    assert live_kinds.of_earlier_runs(path, {"recipe": "a"}) == rows
    with pytest.raises(SystemExit, match="measured with recipe 'a', not 'b': give another --json"):
        live_kinds.of_earlier_runs(path, {"recipe": "b"})


def test_the_table_of_the_guide_has_kinds_and_not_seeds(
    live_kinds: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables = importlib.import_module("make_tables")
    rows = [of_kind("ctc", 1, 70.0), of_kind("transducer", 1, 2.0), of_kind("transducer", 2, 4.0)]
    monkeypatch.setattr(make_tables, "read", lambda name: {"rows": rows})
    head, _, *lines = [line.strip("| ").split(" | ") for line in make_tables.live_kinds("kinds")]
    assert head[:3] == ["seeds", "WER of files, %", "WER live, %"]  # above the kinds is nothing
    assert [line[:3] for line in lines] == [
        ["ctc", "1", "70.00"],
        ["transducer", "2", "3.00 ± 1.41"],
    ]
    rows[2:] = []
    head, _, *lines = [line.strip("| ").split(" | ") for line in make_tables.live_kinds("kinds")]
    assert (head[0], lines[1][:2]) == ("WER of files, %", ["transducer", "2.00"])
