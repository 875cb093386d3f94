"""AdamW and Muon on Multi30k: validation loss at equal updates and at equal time.

    python benchmarks/optimizer.py [--steps 1200] [--seeds 3] [--rates 1e-3 2e-3] [--device auto]

A small Transformer (en-de), trained with each optimizer, each peak learning rate and each seed; the
best rate of an optimizer is the one with the lowest mean loss at the end. Nothing is decoded.
Writes benchmarks/results/optimizer_DEVICE.json after every run and prints a table: mean and
standard deviation over the seeds. With the defaults there are 12 runs; on a GPU give --minutes 3 to
share that time equally: every run then ends after its part, and `equal updates` is where the
slowest of all runs ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from transduce.hardware import describe, pick_device
from transduce.training import train
from transduce.training.log import read_log

RESULTS = Path(__file__).parent / "results"
OPTIMIZERS = ("adamw", "muon")
POINTS = 12  # validations of a run
RECIPE: dict[str, Any] = {
    "name": "optimizer",
    "data": {
        "train": {"name": "multi30k", "split": "train", "pair": "en-de"},
        "valid": {"name": "multi30k", "split": "valid", "pair": "en-de"},
        "tokens": {"both": {"size": 8000}},
        "max_length": 128,
    },
    "model": {"preset": "transformer-small", "dropout": 0.2, "tie_embeddings": "all"},
    "decode": {"beam": 1},
    "metrics": [],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3])
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--limit", type=int, help="only the first N pairs")
    parser.add_argument("--minutes", type=float, help="of all runs together")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    facts = {"device": describe(pick_device(arguments.device)), **vars(arguments)}
    place = RESULTS / f"optimizer_{pick_device(arguments.device).type}.json"
    for seed in range(1, arguments.seeds + 1):
        for rate in arguments.rates:
            for optimizer in OPTIMIZERS:
                points = measure(arguments, optimizer, rate, seed)
                runs.append({"optimizer": optimizer, "lr": rate, "seed": seed, "valid": points})
                RESULTS.mkdir(exist_ok=True)
                place.write_text(json.dumps({**facts, "runs": runs}, indent=1) + "\n")
    for line in summary(runs):
        print(line)


def measure(
    arguments: argparse.Namespace, optimizer: str, rate: float, seed: int
) -> list[tuple[int, float, float]]:
    """Update, seconds of training and validation loss, at each validation of a run."""
    count = 2 * arguments.seeds * len(arguments.rates)
    settings = {
        "steps": arguments.steps,
        "minutes": arguments.minutes and arguments.minutes / count,
        "batch_tokens": arguments.batch_tokens,
        "lr": rate,
        "warmup": max(1, arguments.steps // 10),
        "schedule": "cosine",
        "optimizer": optimizer,
        "device": arguments.device,
        "log_every": arguments.steps,
    }
    recipe = {**RECIPE, "seed": seed, "train": settings}
    recipe["model"] = {**RECIPE["model"], "width": arguments.width}
    recipe["data"] = {**RECIPE["data"]}
    if arguments.limit:
        for split in ("train", "valid"):
            recipe["data"][split] = {**RECIPE["data"][split], "limit": arguments.limit}
    every = max(1, arguments.steps // POINTS)
    recipe["validation"] = {"every": every, "metric": "loss", "limit": 1}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        trained = train(recipe, folder)
        records = [one for one in read_log(folder / "log.jsonl") if one["kind"] == "valid"]
    # The log of a validation has no clock: updates take equally long.
    each = trained.state.seconds / max(trained.state.step, 1)
    return [(one["step"], one["step"] * each, one["loss"]) for one in records]


def summary(runs: list[dict[str, Any]]) -> list[str]:
    """The best rate of each optimizer, at equal updates and at equal time."""
    best = {name: _best([run for run in runs if run["optimizer"] == name]) for name in OPTIMIZERS}
    chosen = [run for some in best.values() for run in some]
    updates = min(run["valid"][-1][0] for run in chosen)
    seconds = min(run["valid"][-1][1] for run in chosen)
    lines = [
        f"equal updates: {updates:,}; equal time: {seconds:.1f} s of training",
        "| optimizer | peak lr | loss at equal updates | loss at equal time | updates per s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, some in best.items():
        at_updates = [_at(run["valid"], 0, updates) for run in some]
        at_time = [_at(run["valid"], 1, seconds) for run in some]
        speed = statistics.mean(run["valid"][-1][0] / run["valid"][-1][1] for run in some)
        lines.append(
            f"| {name} | {some[0]['lr']:g} | {_spread(at_updates)} | {_spread(at_time)} | "
            f"{speed:.1f} |"
        )
    return lines


def _best(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs of the learning rate whose mean loss at the end is lowest."""
    by_rate: dict[float, list[dict[str, Any]]] = {}
    for run in runs:
        by_rate.setdefault(run["lr"], []).append(run)
    return min(
        by_rate.values(), key=lambda some: statistics.mean(run["valid"][-1][2] for run in some)
    )


def _at(points: list[tuple[int, float, float]], axis: int, place: float) -> float:
    """The loss where updates (0) or seconds (1) reach a place, interpolated."""
    before = points[0]
    for point in points:
        if point[axis] >= place:
            span = point[axis] - before[axis]
            share = (place - before[axis]) / span if span else 1.0
            return before[2] + share * (point[2] - before[2])
        before = point
    return points[-1][2]


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"


class _Plain(argparse.RawDescriptionHelpFormatter):
    pass


if __name__ == "__main__":
    main()
