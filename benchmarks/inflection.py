"""Inflection with features as tags: the recipe of docs/guides/words.md against one without dropout.

    python benchmarks/inflection.py SIGMORPHON2022_FOLDER --language kat --steps 1000 --json FILE

The folder holds LANG_large.train, LANG.dev and LANG.gold of the SIGMORPHON-UniMorph 2022 shared
task, part 1: lemma, form and features, separated by tabs. Each setting trains for the same number
of updates, with one seed after another; exact is measured on LANG.gold.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import transduce
from transduce.evaluation.evaluate import evaluate_folder

SETTINGS: dict[str, dict[str, Any]] = {
    "width 64, dropout 0.0": {"width": 64, "dropout": 0.0},
    "width 128, dropout 0.3": {"width": 128, "dropout": 0.3},
}


def recipe(
    folder: Path, language: str, model: dict[str, Any], arguments: argparse.Namespace
) -> Any:
    corpora = {
        "train": f"{language}_large.train",
        "valid": f"{language}.dev",
        "test": f"{language}.gold",
    }
    return {
        "name": "inflection",
        "data": {
            "folder": str(folder.resolve()),
            **{
                split: {"file": name, "format": "tsv", "tags": 2} for split, name in corpora.items()
            },
            "tokens": {"both": {"level": "character"}},
        },
        "model": {"preset": "gru-attention", "tie_embeddings": "all", **model},
        "train": {
            "steps": arguments.steps,
            "minutes": arguments.minutes,
            "batch_tokens": arguments.batch_tokens,
            "lr": 3e-3,
            "warmup": 100,
            "label_smoothing": 0.0,
            "schedule": "cosine",
            "device": "cpu",
        },
        "validation": {"every": 250, "metric": "exact", "limit": 200},
        "metrics": ["exact", "cer"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--language", default="kat")
    parser.add_argument("--minutes", type=float, help="stop earlier, by the wall clock")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    for name, model in SETTINGS.items():
        scores, updates, seconds = [], [], []
        for seed in range(1, arguments.seeds + 1):
            asked = recipe(arguments.folder, arguments.language, model, arguments)
            began = time.perf_counter()
            with tempfile.TemporaryDirectory() as place:
                trained = transduce.train({**asked, "seed": seed}, Path(place) / "run")
                seconds.append(round(time.perf_counter() - began, 1))
                found = evaluate_folder(trained.model, trained.folder, write=False)
            scores.append(round(found.metrics["exact"].value, 2))
            updates.append(trained.state.step)
        row = {"setting": name, "exact": mean(scores), "of_seeds": scores, "updates": updates}
        rows.append({**row, "seconds": seconds})
        print(json.dumps(rows[-1]), flush=True)
    metadata = {
        "command": "python benchmarks/inflection.py " + " ".join(sys.argv[2:-2]),
        "language": arguments.language,
        "pairs": sum(1 for _ in (arguments.folder / f"{arguments.language}_large.train").open()),
        "steps": arguments.steps,
        "batch_tokens": arguments.batch_tokens,
        "threads": arguments.threads,
        "machine": f"{platform.machine()}, shared with other work",
        "torch": torch.__version__,
        "rows": rows,
    }
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(metadata, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
