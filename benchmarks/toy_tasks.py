"""Does every family of models learn to copy and to reverse strings it never saw?

    python benchmarks/toy_tasks.py [--seeds 1] [--only gru-attention] [--tasks copy,reverse]
        [--override train.steps=10]

Trains each preset (narrowed to suit a CPU) on the shipped recipes `copy` and `reverse`, decodes the
1,000 test strings greedily, prints the share that is wholly right, and writes
benchmarks/results/toy_tasks.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from transduce.data.text.pairs import read_pairs
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import items_of
from transduce.recipe import load_recipe
from transduce.training import train

RESULTS = Path(__file__).parent / "results" / "toy_tasks.json"

RECURRENT = ["model.width=128", "train.lr=3e-3", "train.batch_tokens=1024"]
FAMILIES: dict[str, list[str]] = {
    "transformer-tiny": ["model.width=64", "train.batch_tokens=512"],
    "lstm-seq2seq": RECURRENT,
    "lstm-attention": ["model.width=128", "train.lr=3e-3", "train.batch_tokens=512"],
    "gru-attention": RECURRENT,
    "peephole-attention": RECURRENT,
    "rnn-attention": RECURRENT,
}


def run(preset: str, task: str, seed: int, folder: Path, overrides: list[str]) -> dict[str, Any]:
    """Train one model and score it on strings that are in no other split."""
    narrowed = [f"model.preset={preset}", f"seed={seed}", *FAMILIES[preset], *overrides]
    recipe = load_recipe(task, narrowed)
    began = time.perf_counter()
    trained = train(recipe, folder / f"{task}-{preset}-{seed}", overwrite=True)
    assert recipe.data.test is not None
    items = items_of(list(read_pairs(recipe.data.test, recipe.data.folder)), False)
    scored = evaluate(trained.model, items, ["exact", "cer"])
    return {
        "task": task,
        "preset": preset,
        "seed": seed,
        "exact": scored.metrics["exact"].value,
        "cer": scored.metrics["cer"].value,
        "updates": trained.state.step,
        "seconds": round(time.perf_counter() - began, 1),
        "parameters": sum(p.numel() for p in trained.model.network.parameters()),
        "machine": f"{platform.machine()}, torch {torch.__version__}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", default=",".join(FAMILIES))
    parser.add_argument("--tasks", default="copy,reverse")
    parser.add_argument("--override", action="append", default=[], help="of all; for trials")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for preset in arguments.only.split(","):
            for task in arguments.tasks.split(","):
                for seed in range(1, arguments.seeds + 1):
                    rows.append(run(preset, task, seed, Path(folder), arguments.override))
                    row = rows[-1]
                    print(
                        f"{preset:20} {task:8} seed {seed}  exact {row['exact']:6.2f} %  "
                        f"{row['updates']:5} updates  {row['seconds']:6.1f} s",
                        flush=True,
                    )
    metadata = {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    out: Path = arguments.out
    old = json.loads(out.read_text("utf-8"))["rows"] if out.exists() else []
    fresh = {(row["preset"], row["task"], row["seed"]) for row in rows}
    kept = [row for row in old if (row["preset"], row["task"], row["seed"]) not in fresh]
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"facts": metadata, "rows": kept + rows}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
