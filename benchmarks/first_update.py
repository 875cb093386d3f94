"""Seconds from the command to the first update of a large corpus, with empty caches and with full
ones.

    python benchmarks/first_update.py [--pairs 200000] [--rounds 3] [--device cuda]

A made-up corpus of sentences of 5 to 18 words, their words turned round, trained with the recipe
multi30k-en-de for a few updates. Each round has new folders for all caches (tokenised corpora and
vocabularies, kernels of Triton, Inductor and CUDA) and trains twice: cold, then warm. Prints all
and writes benchmarks/results/first_update_DEVICE.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from systems import metadata

RESULTS = Path(__file__).parent / "results"
VOCABULARY = 20_000
LIMIT = 300  # seconds of a training at most
CACHES = {
    "XDG_CACHE_HOME": "tokenised",
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
}


def made_up(folder: Path, pairs: int) -> None:
    """The files of the corpus; words are drawn about as by Zipf's law."""
    drawn = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(drawn.choices(letters, k=drawn.randint(2, 9))) for _ in range(VOCABULARY)]
    weights = list(itertools.accumulate(1 / (rank + 10) for rank in range(VOCABULARY)))
    for name, count in (("train", pairs), ("valid", min(pairs, 500))):
        lines = [
            drawn.choices(words, cum_weights=weights, k=drawn.randint(5, 18)) for _ in range(count)
        ]
        for side, turn in (("source", 1), ("target", -1)):
            text = "\n".join(" ".join(word[::turn] for word in line) for line in lines)
            (folder / f"{name}.{side}").write_text(text + "\n", "utf-8")


def train(folder: Path, caches: Path, run: Path, asked: argparse.Namespace) -> dict[str, float]:
    """Seconds from the start of the process to its first update, and to its end."""
    data = [
        f"data.{part}={{source: {folder}/{part}.source, target: {folder}/{part}.target}}"
        for part in ("train", "valid")
    ]
    settings = ["data.test=null", "train.steps=20", "train.log_every=1", "validation.every=20"]
    command = [sys.executable, "-m", "transduce", "train", "multi30k-en-de", "--output", str(run)]
    command += [*data, *settings, f"train.device={asked.device}", *asked.override]
    places = {name: str(caches / folder) for name, folder in CACHES.items()}
    began, found = time.perf_counter(), dict[str, float]()
    process = subprocess.Popen(
        command,
        env={**os.environ, **places, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    late = threading.Timer(LIMIT, process.kill)
    late.start()
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith("step "):
            found.setdefault("first update", round(time.perf_counter() - began, 2))
    late.cancel()
    if process.wait() or "first update" not in found:
        raise SystemExit(f"the training ended with {process.returncode}:\n{''.join(said[-20:])}")
    return {**found, "end": round(time.perf_counter() - began, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--override", action="append", default=[], help="KEY=VALUE of the recipe")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made_up(folder, asked.pairs)
        for number in range(asked.rounds):
            caches = folder / f"caches-{number}"
            rounds.append(
                {
                    kind: train(folder, caches, folder / f"{kind}-{number}", asked)
                    for kind in ("cold", "warm")
                }
            )
            print(json.dumps(rounds[-1]), flush=True)
    for kind in ("cold", "warm"):
        seconds = sorted(one[kind]["first update"] for one in rounds)
        middle = statistics.median(seconds)
        print(f"{kind}: first update after {middle:.1f} s, {seconds[0]:.1f} to {seconds[-1]:.1f}")
    found = {
        "command": " ".join(["python benchmarks/first_update.py", *sys.argv[1:]]),
        "metadata": metadata(torch.device(asked.device)),
        "pairs": asked.pairs,
        "rounds": rounds,
    }
    out = asked.out or RESULTS / f"first_update_{asked.device}.json"
    out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
