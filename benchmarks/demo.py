"""The demo's figures over several seeds.

    python benchmarks/demo.py [--seeds 3] [--override train.steps=10]

Runs what `transduce demo` runs for each seed in a process of its own, prints scores and times, and
writes benchmarks/results/demo.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "demo.json"


def run(seed: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    began = time.perf_counter()
    command = [sys.executable, __file__, "--one", str(folder), str(seed), *overrides]
    subprocess.run(command, check=True)
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    return {
        "seed": seed,
        "wall_seconds": round(time.perf_counter() - began, 1),
        "training": metrics["training"],
        "test": metrics["test"],
    }


def one(folder: str, seed: str, *overrides: str) -> None:
    """What the command does, in a process of its own."""
    from transduce.cli.demos import pronounce

    pronounce(Path(folder), int(seed), overrides)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--override", action="append", default=[], help="of the recipe; for trials")
    asked = parser.parse_args()
    seeds = range(1, asked.seeds + 1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [run(seed, Path(folder) / str(seed), asked.override) for seed in seeds]
    for row in rows:
        scores = "  ".join(
            f"{name} {metric['value']:.2f} [{metric['low']:.2f}, {metric['high']:.2f}]"
            for name, metric in row["test"]["metrics"].items()
        )
        print(f"seed {row['seed']}: {scores}  training {row['training']['seconds']:.0f} s")
    pers = [row["test"]["metrics"]["per"]["value"] for row in rows]
    print(f"PER mean {statistics.mean(pers):.2f}, from {min(pers):.2f} to {max(pers):.2f}")
    metadata = {"command": "python benchmarks/demo.py", "cores": os.cpu_count()}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"facts": metadata, "rows": rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        main()
