"""One training step in a process of its own, as memory on a CPU can only be told apart there.

    python benchmarks/alone.py '{"spec": ["ours", "eager", "float32"], "size": [...], ...}'

Other benchmarks start it; it prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from systems import SIZES, Size, Spec, build_system

from transduce.data.batches.batch import Batch, collate
from transduce.data.tokens.tokenizer import SPECIALS


def synthetic(size: Size, pairs: int, length: int, seed: int = 1) -> Batch:
    """Pairs of random tokens, all of one length, which END (and not BEGIN) is counted in."""
    draw = torch.Generator().manual_seed(seed)
    shape = (2, pairs, length - 1)
    ids = torch.randint(len(SPECIALS), size.vocabulary, shape, generator=draw).tolist()
    return collate(ids[0], ids[1])


def measure_alone(
    spec: Spec,
    size: Size,
    pairs: int,
    length: int,
    *,
    steps: int,
    threads: int,
    limit: float | None = None,
) -> dict[str, Any]:
    """Seconds of each step after the first, and peak memory in MiB, measured in a child.

    Memory is what came on top of Python and its libraries. Raises RuntimeError where the child
    fails, TimeoutError after `limit` seconds.
    """
    wanted = {
        "spec": astuple(spec),
        "size": astuple(size),
        "pairs": pairs,
        "length": length,
        "steps": steps,
        "threads": threads,
    }
    command = [sys.executable, "-W", "ignore", __file__, json.dumps(wanted)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"longer than {limit:.0f} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(last[-1])
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def resident_mib() -> float:
    path = Path("/proc/self/statm")
    if not path.exists():
        return peak_mib()
    return int(path.read_text("ascii").split()[1]) * resource.getpagesize() / 2**20


def peak_mib() -> float:
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main() -> None:
    wanted = json.loads(sys.argv[1])
    spec, size = Spec(*wanted["spec"]), Size(*wanted["size"])
    torch.set_num_threads(wanted["threads"])
    batch = synthetic(size, wanted["pairs"], wanted["length"])
    cpu = torch.device("cpu")
    # A first step of a tiny model loads whatever libraries are loaded when they are needed.
    tiny = build_system(spec, SIZES["tiny"], cpu, 8)
    tiny.step(tiny.prepare(synthetic(SIZES["tiny"], 2, 8)))
    before = resident_mib()
    system = build_system(spec, size, cpu, wanted["length"])
    prepared = system.prepare(batch)
    losses, seconds = [], []
    for _ in range(wanted["steps"] + 1):
        began = time.perf_counter()
        losses.append(float(system.step(prepared)))
        seconds.append(time.perf_counter() - began)
    found = {
        "seconds": seconds[1:],
        "peak_mib": peak_mib() - before,
        "libraries_mib": before,
        "parameters": system.parameters,
        "losses": losses,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
