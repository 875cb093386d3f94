"""What several ranks cost: an update alone, the exchange of gradients alone, and both together.

    python benchmarks/ranks.py [--count 2] [--size small] [--tokens 2048] [--device cpu]

Starts the ranks with torchrun. In the same processes, round after round, each way of training has
its updates on synthetic batches without padding, as many tokens on each rank:

    alone      no exchange: what computing takes while the other ranks compute too
    exchange   the all-reduce of the gradients, and nothing else
    after      gradients exchanged after the backward pass
    during     gradients exchanged during the backward pass, as training does without CUDA graphs
    captured   with CUDA graphs, and the exchange after them, as training does on a GPU
    captured alone   the same without an exchange
    fsdp       weights, gradients and moments in shards

The scaling model of docs/guides/scaling.md says what `after` and `during` should take, by `alone`
and `exchange`; both are printed beside what they took. Writes benchmarks/results/ranks_DEVICE.json.
`--device cuda:0` lets all ranks share one GPU, by gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from alone import synthetic
from systems import PRECISIONS, RATE, SETTINGS, SIZES, Size, metadata
from torch import nn

from transduce import recipe
from transduce.data.batches.batch import Batch
from transduce.models.build import Vocabulary, build
from transduce.training.distributed.fsdp import ShardedUpdate, sharded
from transduce.training.distributed.gradients import bucketed
from transduce.training.distributed.processes import Processes, join
from transduce.training.optimizer import build_optimizer, set_learning_rate
from transduce.training.update import CapturedUpdate, Update

RESULTS = Path(__file__).parent / "results"
LENGTH = 32  # tokens of each side
BACKWARD = 2 / 3  # of the time of a pass
WARM_UP = 6  # updates, by which CUDA graphs are captured


def network_of(size: Size, device: torch.device) -> nn.Module:
    torch.manual_seed(1)
    part = {"layers": size.layers, "heads": size.heads, "feed_forward": size.feed_forward}
    settings = recipe.Model(
        width=size.width,
        dropout=0.1,
        tie_embeddings="all",
        encoder=recipe.TransformerEncoder(**part),
        decoder=recipe.TransformerDecoder(**part),
    )
    return build(settings, Vocabulary(size.vocabulary, size.vocabulary)).to(device).train()


def step_of(name: str, ranks: Processes, device: torch.device, asked: Any) -> Callable[[], None]:
    """One update, or one exchange."""
    size, precision = SIZES[asked.size], PRECISIONS[asked.precision]
    network = network_of(size, device)
    if name == "fsdp":
        network = sharded(network, device, ranks)
    optimizer = build_optimizer(network, SETTINGS)
    set_learning_rate(optimizer, RATE)
    kind = ShardedUpdate if name == "fsdp" else Update
    kind = CapturedUpdate if name.startswith("captured") else kind
    group = Processes() if name.endswith("alone") else ranks
    update = kind(network, optimizer, SETTINGS, precision, group)
    if name == "after":
        update.exchange.begin_pass = lambda last: None  # type: ignore[method-assign]
    if name == "exchange":
        return update.exchange.finish
    batches: list[Batch] = [
        synthetic(size, asked.tokens // LENGTH, LENGTH, 4 * ranks.rank + seed) for seed in range(4)
    ]

    def step() -> None:
        batches.append(batches.pop(0))
        update([batches[0]])
        update.apply()

    return step


def measure(ranks: Processes, device: torch.device, asked: Any) -> dict[str, Any]:
    names = ["alone", "exchange", "after", "during"]
    names += ["captured alone", "captured"] if device.type == "cuda" else []
    names += [] if asked.without_fsdp else ["fsdp"]
    steps: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    for name in names:
        try:
            steps[name] = step_of(name, ranks, device, asked)
            for _ in range(WARM_UP):
                steps[name]()
        except RuntimeError as error:  # what a backend cannot do
            failed[name] = " ".join(str(error).split())[:200]
            steps.pop(name, None)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(asked.rounds):
        for name, step in steps.items():
            ranks.barrier()
            if device.type == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(asked.updates):
                step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            own = (time.perf_counter() - began) / asked.updates
            seconds[name].append(max(took for (took,) in ranks.all_gather_numbers([own])))
    buckets = bucketed(list(network_of(SIZES[asked.size], device).parameters())[::-1])
    sizes = [sum(w.numel() * w.element_size() for w in bucket) for bucket in buckets]
    return {
        "ranks": ranks.count,
        "backend": torch.distributed.get_backend(),
        "size": asked.size,
        "tokens": asked.tokens,
        "precision": asked.precision,
        "gradient_bytes": sum(sizes),
        "last_bucket_bytes": sizes[-1],  # complete only when the backward pass is
        "seconds": seconds,
        "failed": failed,
        **metadata(device),
    }


def predicted(found: dict[str, Any]) -> dict[str, float]:
    """Seconds of an update by the scaling model."""
    alone, exchange = (statistics.median(found["seconds"][name]) for name in ("alone", "exchange"))
    tail = exchange * found["last_bucket_bytes"] / found["gradient_bytes"]
    return {
        "after": alone + exchange,
        "during": alone + max(tail, exchange - BACKWARD * alone),
    }


def show(found: dict[str, Any]) -> None:
    count, model = found["ranks"], found["predicted"]
    print(f"{count} ranks, {found['backend']}, {found['gradient_bytes'] / 1e6:.1f} MB of gradients")
    for name, rounds in found["seconds"].items():
        took = statistics.median(rounds)
        line = (
            f"{name:15} {1e3 * took:8.2f} ms ({1e3 * min(rounds):.2f} to {1e3 * max(rounds):.2f})"
        )
        if name != "exchange":
            line += f"  {count * found['tokens'] / took:>10,.0f} target tokens/s"
        if name in model:
            line += f"  (model: {1e3 * model[name]:.2f} ms)"
        print(line)
    for name, why in found["failed"].items():
        print(f"{name}: not possible here: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--tokens", type=int, default=2048, help="target tokens of a rank's batch")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-fsdp", action="store_true")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        command = [sys.executable, *launcher, str(asked.count), *sys.argv]
        sys.exit(subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode)
    with join(asked.device) as ranks:
        found = measure(ranks, ranks.device(asked.device), asked)
        if ranks.first:
            found["predicted"] = predicted(found)
            show(found)
            kind = "cuda" if asked.device.startswith("cuda") else "cpu"
            place = asked.out or RESULTS / f"ranks_{kind}.json"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
