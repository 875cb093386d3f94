"""What the pages with measured figures share: raw results, and tables of Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"


def read(name: str) -> dict[str, Any] | None:
    """The results in a file; None where nothing was measured."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def read_lines(name: str) -> list[dict[str, Any]]:
    """The results in a file of JSON lines; none where nothing was measured."""
    path = RESULTS / f"{name}.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def three_digits(value: float) -> str:
    """A speed as it is shown: more digits would say more than the spread over rounds allows."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    ruler = ["---"] * len(head)
    return ["| " + " | ".join(row) + " |" for row in [head, ruler, *rows]]
