"""What activation checkpointing costs and saves: time of an update, and peak memory.

    python benchmarks/checkpointing.py [--rounds 3] [--threads 1] [--json OUT.json]

Updates of a Transformer as `transduce train` does them, on random pairs of one length, on a CPU.
Each measurement is a process of its own, as peak memory can only be told apart there; with and
without checkpointing take turns. Time is CPU time, so that other work on the machine disturbs it
little. Memory is what came on top of Python and its libraries; `fixed` is weights, gradients and
optimizer state, which checkpointing does not change.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch
from alone import peak_mib, resident_mib, synthetic
from systems import PRECISIONS, SETTINGS, SIZES, Size, ours

RESULTS = Path(__file__).parent / "results"
CASES = (  # shape, pairs, tokens a side
    (SIZES["small"], 64, 32),
    (Size("deep", 12, 256, 4, 1024, 8_000), 64, 32),
    (SIZES["small"], 16, 512),
    (SIZES["small"], 256, 32),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="updates that count in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a tiny model, to see that it runs")
    parser.add_argument("--json", type=Path, default=RESULTS / "checkpointing_cpu.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(measure(json.loads(asked.one))))
        return
    rows = []
    for size, pairs, length in [(SIZES["tiny"], 8, 16)] if asked.quick else CASES:
        row: dict[str, Any] = {"size": astuple(size), "pairs": pairs, "length": length}
        found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
        for turn in range(asked.rounds):
            for active in (False, True) if turn % 2 == 0 else (True, False):
                wanted = row | {"active": active, "steps": asked.steps, "threads": asked.threads}
                found[active].append(alone(wanted))
        for active, name in ((False, "without"), (True, "with")):
            row[name] = {key: [one[key] for one in found[active]] for key in found[active][0]}
        row["same_losses"] = row["without"]["losses"] == row["with"]["losses"]
        rows.append(row)
        print(line(row), flush=True)
        values = {
            "command": f"python benchmarks/checkpointing.py --rounds {asked.rounds} "
            f"--steps {asked.steps}",
            "hardware": f"{platform.machine()} CPU, {asked.threads} threads",
            "torch": torch.__version__,
            "rows": rows,
        }
        asked.json.write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def alone(wanted: dict[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, "--one", json.dumps(wanted)],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(wanted["threads"])},
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(wanted: dict[str, Any]) -> dict[str, Any]:
    """CPU seconds of an update, and MiB, in this process."""
    torch.set_num_threads(wanted["threads"])
    # Validated, so that a key that has been renamed is not taken for nothing.
    asked = SETTINGS.model_dump() | {"checkpoint_activations": wanted["active"]}
    settings = type(SETTINGS).model_validate(asked)
    cpu, precision = torch.device("cpu"), PRECISIONS["float32"]
    tiny = ours(SIZES["tiny"], cpu, precision, settings)  # loads libraries
    tiny.step(synthetic(SIZES["tiny"], 2, 8))
    before = resident_mib()
    torch.manual_seed(1)
    size = Size(*wanted["size"])
    system = ours(size, cpu, precision, settings)
    system.step(synthetic(size, 1, 4))  # makes gradients and the optimizer's state
    fixed = resident_mib() - before
    batch = synthetic(size, wanted["pairs"], wanted["length"])
    seconds, losses = [], []
    for _ in range(1 + wanted["steps"]):
        start = time.process_time()
        losses.append(float(system.step(batch)))
        seconds.append(time.process_time() - start)
    return {
        "cpu_seconds": statistics.mean(seconds[1:]),
        "peak_mib": peak_mib() - before,
        "fixed_mib": fixed,
        "losses": losses,
    }


def line(row: dict[str, Any]) -> str:
    without, with_it = row["without"], row["with"]
    ratios = [b / a for a, b in zip(without["cpu_seconds"], with_it["cpu_seconds"], strict=True)]
    size = Size(*row["size"])
    return (
        f"{size.name} {size.layers}+{size.layers}, {row['pairs']} x {row['length']}: "
        f"{statistics.median(ratios):.2f} times the CPU time ({min(ratios):.2f} to "
        f"{max(ratios):.2f}); peak {statistics.median(without['peak_mib']):.0f} -> "
        f"{statistics.median(with_it['peak_mib']):.0f} MiB, of which fixed "
        f"{statistics.median(with_it['fixed_mib']):.0f}; same losses: {row['same_losses']}"
    )


if __name__ == "__main__":
    main()
