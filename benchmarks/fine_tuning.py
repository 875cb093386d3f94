"""The example of docs/guides/fine-tuning.md, measured: exact match on American dates.

    python benchmarks/fine_tuning.py [--seeds 3] [--steps-share 1.0] [--device auto]

Runs the page's own code and recipes: a model of British dates, then the same model fine-tuned on
100 American pairs with a frozen encoder and with an adapter, and the same network trained on these
pairs from nothing. Prints a table of mean and range over the seeds, and writes
benchmarks/results/fine_tuning.json after every seed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import tempfile
from contextlib import chdir
from pathlib import Path
from typing import Any

import yaml

from transduce import load
from transduce.hardware import describe, pick_device
from transduce.training import train

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "fine-tuning.md"
RESULTS = Path(__file__).resolve().parent / "results" / "fine_tuning.json"
NAMES = {
    "british": "the start model, on British dates",
    "start": "the start model",
    "frozen": "fine-tuned, its encoder frozen",
    "adapter": "with an adapter",
    "nothing": "the same network from nothing",
}


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps-share", type=float, default=1.0, help="of the page's updates")
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    runs: list[dict[str, Any]] = []
    device = describe(pick_device(arguments.device))
    for seed in range(1, arguments.seeds + 1):
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            runs.append({"seed": seed, **measure(arguments, seed)})
        metadata = {"device": device, "cores": os.cpu_count(), **vars(arguments)}
        RESULTS.write_text(json.dumps({**metadata, "runs": runs}, indent=1) + "\n")
    for line in summary(runs):
        print(line)


def measure(arguments: argparse.Namespace, seed: int) -> dict[str, float]:
    """Exact match in per cent of each model, and the sizes of what was saved."""
    text = PAGE.read_text("utf-8")
    code = re.search(r"```python\n(import random.*?)```", text, re.DOTALL)
    assert code is not None
    exec(code[1], {})
    recipes = {}
    for body in re.findall(r"```yaml\n(name: .*?)```", text, re.DOTALL):
        recipe = yaml.safe_load(re.sub(r"\b(\d)e-", r"\1.0e-", body))  # a number for YAML 1.1 too
        recipe["seed"] = seed
        recipe["train"]["device"] = arguments.device
        steps = max(1, int(recipe["train"]["steps"] * arguments.steps_share))
        recipe["train"]["steps"] = steps
        recipes[recipe["name"]] = recipe
    british, american, adapted = (recipes[n] for n in ("british", "american", "american-lora"))
    nothing = {**american, "model": british["model"], "name": "nothing"}
    nothing["data"] = {**american["data"], "tokens": british["data"]["tokens"]}
    nothing["train"] = {k: v for k, v in american["train"].items() if k != "start"}
    for recipe in (british, american, adapted, nothing):
        train(recipe)
    found = {
        "british": exact("runs/british", "british.valid.tsv"),
        "start": exact("runs/british", "american.valid.tsv"),
        "frozen": exact("runs/american", "american.valid.tsv"),
        "adapter": exact("runs/american-lora", "american.valid.tsv"),
        "nothing": exact("runs/nothing", "american.valid.tsv"),
    }
    sizes = {
        f"{name}_bytes": Path(f"runs/{folder}/model.safetensors").stat().st_size
        for name, folder in (("model", "american"), ("adapter", "american-lora"))
    }
    return found | sizes


def exact(folder: str, file: str) -> float:
    """Per cent of a file's sources whose output is the reference."""
    pairs = [line.split("\t") for line in Path(file).read_text().splitlines()]
    outputs = load(folder).run([source for source, _ in pairs])
    right = [output.text == target for output, (_, target) in zip(outputs, pairs, strict=True)]
    return 100 * statistics.fmean(right)


def summary(runs: list[dict[str, Any]]) -> list[str]:
    lines = ["| model | exact match, % | lowest | highest |", "| --- | --- | --- | --- |"]
    for name, reported in NAMES.items():
        values = [run[name] for run in runs]
        mean = statistics.fmean(values)
        lines.append(f"| {reported} | {mean:.1f} | {min(values):.1f} | {max(values):.1f} |")
    return lines


if __name__ == "__main__":
    main()
