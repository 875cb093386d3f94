"""Inflection with features as tags: the recipe of docs/guides/words.md against one without dropout.

    python benchmarks/inflection.py SIGMORPHON2022_FOLDER --language kat --seeds 3 --json FILE

The folder holds LANG_large.train, LANG_small.train, LANG.dev and LANG.gold of the
SIGMORPHON-UniMorph 2022 shared task, part 1: lemma, form and features, separated by tabs. Each
setting gets the same CPU time: a few updates are timed first, and the number of updates, to which
the schedule is fitted, follows from that. Exact match is measured on LANG.gold.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from systems import hardware

import transduce
from transduce.evaluation.evaluate import evaluate_folder

SETTINGS: dict[str, dict[str, Any]] = {
    "width 64, dropout 0.0": {"width": 64, "dropout": 0.0},
    "width 64, dropout 0.3": {"width": 64, "dropout": 0.3},
    "width 128, dropout 0.0": {"width": 128, "dropout": 0.0},
    "width 128, dropout 0.3": {"width": 128, "dropout": 0.3},
    "width 128, dropout 0.3, copying": {
        "width": 128,
        "dropout": 0.3,
        "decoder": {"copying": True},
    },
}


TIMED = 40
"""Updates that are timed."""


def recipe(arguments: argparse.Namespace, model: dict[str, Any], steps: int, seed: int) -> Any:
    language = arguments.language
    corpora = {
        "train": f"{language}_{arguments.size}.train",
        "valid": f"{language}.dev",
        "test": f"{language}.gold",
    }
    return {
        "name": "inflection",
        "seed": seed,
        "data": {
            "folder": str(arguments.folder.resolve()),
            **{
                split: {"file": name, "format": "tsv", "tags": 2} for split, name in corpora.items()
            },
            "tokens": {"both": {"level": "character"}},
        },
        "model": {"preset": "gru-attention", "tie_embeddings": "all", **model},
        "train": {
            "steps": steps,
            "batch_tokens": arguments.batch_tokens,
            "lr": 3e-3,
            "warmup": min(100, steps),
            "label_smoothing": 0.0,
            "schedule": "cosine",
            "device": "cpu",
        },
        "validation": {"every": max(1, steps // 4), "metric": "exact", "limit": 200},
        "metrics": ["exact", "cer"],
    }


def updates_for(arguments: argparse.Namespace, model: dict[str, Any]) -> int:
    """How many updates fit into the CPU time, validation and start-up not counted."""
    took = []
    for steps in (1, 1 + TIMED):
        began = time.process_time()
        with tempfile.TemporaryDirectory() as place:
            transduce.train(recipe(arguments, model, steps, 0), Path(place) / "run")
        took.append(time.process_time() - began)
    return max(1, int(arguments.seconds * TIMED / (took[1] - took[0])))


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    steps = updates_for(arguments, SETTINGS[name])
    scores, seconds = [], []
    for seed in range(1, arguments.seeds + 1):
        began = time.process_time()
        with tempfile.TemporaryDirectory() as place:
            asked = recipe(arguments, SETTINGS[name], steps, seed)
            trained = transduce.train(asked, Path(place) / "run")
            seconds.append(round(time.process_time() - began, 1))
            found = evaluate_folder(trained.model, trained.folder, write=False)
        scores.append(round(found.metrics["exact"].value, 2))
    row = {"setting": name, "exact": round(mean(scores), 2), "of_seeds": scores}
    return {**row, "updates": steps, "cpu_seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--language", default="kat")
    parser.add_argument("--size", default="large", choices=["large", "small"], help="7,000 or 700")
    parser.add_argument("--seconds", type=float, default=120, help="CPU time of each training")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--settings", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in arguments.settings:
        rows.append(measure(name, arguments))
        print(json.dumps(rows[-1]), flush=True)
    metadata = {
        "command": "python benchmarks/inflection.py FOLDER " + shlex.join(sys.argv[2:-2]),
        "language": arguments.language,
        "pairs": sum(
            1 for _ in (arguments.folder / f"{arguments.language}_{arguments.size}.train").open()
        ),
        "seconds": arguments.seconds,
        "batch_tokens": arguments.batch_tokens,
        "machine": f"{hardware(torch.device('cpu'))}, shared with other work",
        "torch": torch.__version__,
        "rows": rows,
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
