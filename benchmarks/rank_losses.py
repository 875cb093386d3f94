"""Whether several ranks learn what one process does: losses of short trainings, side by side.

    python benchmarks/rank_losses.py [RECIPE] [--device cuda] [--steps 40] [--override KEY=VALUE]

A recipe (multi30k-en-de) trains for so many updates, without dropout, in five ways:

    plain     one process, no group
    group     a group of one process, by torchrun: on a GPU, NCCL
    fsdp      the same in shards (FSDP2)
    two       two processes; on a GPU they share it, and communicate by gloo
    resumed   one process, from the checkpoint that `two` had half way

Prints how far the losses of each are from those of `plain`, the largest difference relative to the
loss, and writes all of them to benchmarks/results/rank_losses_DEVICE.json.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from systems import metadata

RESULTS = Path(__file__).parent / "results"
ALIKE = ["model.dropout=0", "train.r_drop=0", "train.accumulate=2", "validation.limit=4"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def train(asked: argparse.Namespace, place: Path, count: int, *more: str) -> None:
    """Train with a group of so many processes; 0: without a group."""
    launcher = [*TORCHRUN, str(count)] if count else []
    settings = [f"train.steps={asked.steps}", f"validation.every={asked.steps // 2}"]
    settings += [f"train.log_every={asked.log_every}", *ALIKE, *asked.override, *more]
    command = [sys.executable, *launcher, "-m", "transduce", "train", asked.recipe]
    subprocess.run([*command, "--output", str(place), *settings], check=True, stdout=sys.stderr)


def losses(place: Path) -> dict[str, dict[str, float]]:
    """By kind (train, valid) and update."""
    found: dict[str, dict[str, float]] = {}
    for line in (place / "log.jsonl").read_text("utf-8").splitlines():
        entry = json.loads(line)
        if "loss" in entry:
            found.setdefault(entry["kind"], {})[str(entry["step"])] = entry["loss"]
    return found


def differences(found: dict[str, dict[str, dict[str, float]]]) -> dict[str, float]:
    """The largest relative difference from the losses of `plain`."""
    return {
        name: max(
            abs(of_kind[step] - loss) / loss
            for kind, of_kind in found[name].items()
            for step, loss in found["plain"][kind].items()
        )
        for name in found
    }


def measure(asked: argparse.Namespace, work: Path) -> dict[str, dict[str, dict[str, float]]]:
    shared = "cuda:0" if asked.device.startswith("cuda") else asked.device
    device = f"train.device={asked.device}"
    train(asked, work / "plain", 0, device)
    train(asked, work / "group", 1, device)
    train(asked, work / "fsdp", 1, device, "train.fsdp=true")
    train(asked, work / "two", 2, f"train.device={shared}")
    shutil.copytree(work / "two", work / "resumed")
    (work / "resumed" / "state" / "training.safetensors").unlink()  # the one before is half way
    train(asked, work / "resumed", 1, "--resume", device)
    return {name: losses(work / name) for name in ("plain", "group", "fsdp", "two", "resumed")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="multi30k-en-de")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--log-every", type=int, default=5)
    parser.add_argument("--override", action="append", default=[], help="of the recipe")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = measure(asked, Path(name))
    far = differences(found)
    for name, one in far.items():
        print(f"{name:8} {one:.1e}")
    result: dict[str, Any] = {"losses": found, "relative_difference": far}
    result |= metadata(torch.device(asked.device))
    place = asked.out or RESULTS / f"rank_losses_{asked.device.partition(':')[0]}.json"
    place.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
