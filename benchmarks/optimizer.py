"""AdamW and Muon: validation loss after the same computing time.

    python benchmarks/optimizer.py [--corpus shakespeare] [--seconds 30] [--seeds 3]
        [--rates 1e-3 2e-3 4e-3] [--device cpu]

A small Transformer is trained with each optimizer and each peak learning rate, with the first seed;
the rate with the lowest loss at the end is then used for the other seeds too. So both have the same
number of trials. Before, some updates of each are timed, in turns: a run has as many updates as fit
into --seconds, and its schedule ends there. Time is CPU time on a CPU, so that other work on the
machine disturbs it little, and time by the clock on a GPU. Nothing is decoded.

Corpora: shakespeare (a language model of letters), cmudict (letters to phones), multi30k (en-de).
Writes benchmarks/results/optimizer_CORPUS_DEVICE.json after every run and prints a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
OPTIMIZERS = ("adamw", "muon")
TIMED = 20  # updates, of which the time of one is taken; twice for each optimizer
POINTS = 4  # validations of a run
SPLITS = ("train", "valid")
CORPORA: dict[str, dict[str, Any]] = {
    "shakespeare": {
        "task": "continue",
        "data": {
            **{split: {"name": "tiny-shakespeare", "split": split} for split in SPLITS},
            "tokens": {"both": {"level": "character"}},
            "max_length": 128,
        },
        "model": {
            "width": 128,
            "dropout": 0.0,
            "decoder": {"layers": 3, "heads": 4, "feed_forward": 512, "activation": "gelu"},
        },
    },
    "cmudict": {
        "data": {
            **{split: {"name": "cmudict", "split": split} for split in SPLITS},
            "tokens": {"source": {"level": "character"}, "target": {"level": "symbol"}},
        },
        "model": {"preset": "transformer-small", "width": 128, "dropout": 0.1},
    },
    "multi30k": {
        "data": {
            **{split: {"name": "multi30k", "split": split, "pair": "en-de"} for split in SPLITS},
            "tokens": {"both": {"size": 8000}},
            "max_length": 128,
        },
        "model": {"preset": "transformer-small", "dropout": 0.2, "tie_embeddings": "all"},
    },
}


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--corpus", choices=CORPORA, default="shakespeare")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3, 4e-3])
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--files", type=Path, nargs=2, help="training and validation text instead")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    from transduce.hardware import describe, pick_device

    device = pick_device(asked.device)
    facts = {
        "command": f"python benchmarks/optimizer.py --corpus {asked.corpus} --seconds "
        f"{asked.seconds:g} --seeds {asked.seeds} --rates {' '.join(map(str, asked.rates))}",
        "device": describe(device),
        "clock": "CPU seconds" if device.type == "cpu" else "seconds",
        "corpus": asked.corpus,
        "seconds": asked.seconds,
        "batch_tokens": asked.batch_tokens,
        "each": time_updates(asked),
    }
    place = RESULTS / f"optimizer_{asked.corpus}_{device.type}.json"
    runs: list[dict[str, Any]] = []
    chosen = dict.fromkeys(OPTIMIZERS, 0.0)
    for seed in range(1, asked.seeds + 1):
        for name in OPTIMIZERS:
            for rate in asked.rates if seed == 1 else [chosen[name]]:
                steps = max(POINTS, round(asked.seconds / facts["each"][name]))
                runs.append(measure(asked, name, rate, seed, steps))
                place.write_text(json.dumps({**facts, "runs": runs}, indent=1) + "\n", "utf-8")
                print(runs[-1], flush=True)
            if seed == 1:
                own = [run for run in runs if run["optimizer"] == name]
                chosen[name] = min(own, key=lambda run: run["valid"][-1][1])["lr"]
    for line in summary({**facts, "runs": runs}):
        print(line)


def time_updates(asked: argparse.Namespace) -> dict[str, float]:
    """Seconds of one update with each optimizer: those of more updates, less those of few."""
    taken: dict[str, list[float]] = {name: [] for name in OPTIMIZERS}
    for _ in range(2):
        for name in OPTIMIZERS:
            # One validation each, which cancels.
            few, many = (measure(asked, name, 1e-3, 1, steps, 1) for steps in (1, 1 + TIMED))
            taken[name].append((many["seconds"] - few["seconds"]) / TIMED)
    return {name: min(values) for name, values in taken.items()}


def measure(
    asked: argparse.Namespace,
    optimizer: str,
    rate: float,
    seed: int,
    steps: int,
    points: int = POINTS,
) -> dict[str, Any]:
    """A run: its updates and validation losses, and the seconds of all of it."""
    from transduce.hardware import pick_device
    from transduce.training import train
    from transduce.training.log import read_log

    settings = {
        "steps": steps,
        "batch_tokens": asked.batch_tokens,
        "lr": rate,
        "warmup": max(1, steps // 10),
        "schedule": "cosine",
        "optimizer": optimizer,
        "device": asked.device,
        "log_every": steps,
        "label_smoothing": 0.0,
    }
    recipe = {"name": "optimizer", **CORPORA[asked.corpus], "seed": seed, "train": settings}
    if asked.files:
        texts = {split: {"text": str(f)} for split, f in zip(SPLITS, asked.files, strict=True)}
        recipe["data"] = {**recipe["data"], **texts}
    recipe |= {"decode": {"beam": 1}, "metrics": []}
    recipe["validation"] = {"every": max(1, steps // points), "metric": "loss"}
    if recipe.get("task") != "continue":
        recipe["validation"]["limit"] = 1  # outputs; the loss is of the whole set
    clock = time.process_time if pick_device(asked.device).type == "cpu" else time.perf_counter
    with tempfile.TemporaryDirectory() as scratch:
        start = clock()
        train(recipe, Path(scratch) / "run")
        seconds = clock() - start
        records = read_log(Path(scratch) / "run" / "log.jsonl")
    points = [(one["step"], round(one["loss"], 5)) for one in records if one["kind"] == "valid"]
    return {
        "optimizer": optimizer,
        "lr": rate,
        "seed": seed,
        "steps": steps,
        "seconds": round(seconds, 2),
        "valid": points,
    }


def summary(found: dict[str, Any]) -> list[str]:
    """Markdown: each optimizer at its best rate."""
    tried = ", ".join(f"{rate:g}" for rate in sorted({run["lr"] for run in found["runs"]}))
    lines = [
        f"| optimizer | {found['clock']} an update | updates | best of {tried} | loss |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in OPTIMIZERS:
        own = [run for run in found["runs"] if run["optimizer"] == name]
        rate = min((run for run in own if run["seed"] == 1), key=lambda r: r["valid"][-1][1])["lr"]
        losses = [run["valid"][-1][1] for run in own if run["lr"] == rate]
        spread = statistics.stdev(losses) if len(losses) > 1 else 0.0
        lines.append(
            f"| {name} | {found['each'][name]:.4f} | {own[0]['steps']:,} | {rate:g} | "
            f"{statistics.mean(losses):.4f} ± {spread:.4f} |"
        )
    return lines


if __name__ == "__main__":
    main()
