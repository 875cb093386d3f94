"""What looking costs: the time of search without a lens, with one, and with gates.

    python benchmarks/lens_overhead.py [--size small] [--before SRC] [--rounds 7]

Without a lens nothing is to be done: --before names the src folder of a checkout from before there
was one (as `git worktree add` makes it), and its runs take turns with ours. Every run has a process
of its own with one thread, and is the median of some calls, in seconds of that thread's work: what
else a machine does counts little then. Printed are the medians over rounds with the least and the
most. Outputs must be the same, all but those with gates. Writes
benchmarks/results/lens_overhead.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).parent / "results" / "lens_overhead.json"
WAYS = {
    "before": "before there was a lens",
    "without": "without a lens",
    "cross": "decoder.*.cross_attention",
    "next_token": "next_token",
    "everything": "*",
    "gate": "one head gated",
}
SENTENCES, LENGTH, CALLS = 32, 24, 3


def work(way: str, folder: str, beam: int) -> dict[str, Any]:
    """The seconds of a call, and what was written."""
    import torch

    from transduce.tasks.transduce import load

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model: Any = load(folder).freeze()
    draw = random.Random(1)
    names = [name for name in model.source_tokens.names() if name.startswith("t")]
    sources = [" ".join(draw.choices(names, k=LENGTH)) for _ in range(SENTENCES)]

    def call() -> list[Any]:
        settings = {"beam": beam, "max_length": LENGTH}
        if way in ("before", "without"):
            return list(model.run(sources, **settings))
        if way == "gate":
            with model.gates() as gates:
                gates.gate("decoder.0.cross", head=0, factor=0.0)
                return list(model.run(sources, **settings))
        with model.lens(WAYS[way]) as seen:
            outputs = list(model.run(sources, **settings))
        assert len(seen) == len(sources)
        return outputs

    outputs = call()
    seconds = []
    for _ in range(CALLS):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    texts = "\n".join(f"{o.text} {o.score}" for o in outputs)
    return {
        "seconds": statistics.median(seconds),
        "written": hashlib.sha256(texts.encode()).hexdigest(),
    }


def in_a_process(way: str, source: Path, folder: Path, beam: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--work", way, "--model", str(folder), "--beam", str(beam)]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="small")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--work", choices=list(WAYS))
    parser.add_argument("--model")
    asked = parser.parse_args()
    if asked.work:
        print(json.dumps(work(asked.work, asked.model, asked.beam)))
        return
    import torch
    from decode_model import make_model
    from systems import SIZES, metadata

    ways = [way for way in WAYS if way != "before" or asked.before is not None]
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as folder:
        make_model(SIZES[asked.size], Path(folder))
        for number in range(asked.rounds):
            for way in ways if number % 2 == 0 else reversed(ways):
                source = asked.before if way == "before" else ROOT / "src"
                found[way].append(in_a_process(way, source.resolve(), Path(folder), asked.beam))
    written = {run["written"] for way in ways if way != "gate" for run in found[way]}
    if len(written) > 1:
        raise SystemExit("a lens has changed what is written")
    plain = statistics.median(run["seconds"] for run in found["without"])
    rows = {}
    for way in ways:
        seconds = [run["seconds"] for run in found[way]]
        middle = statistics.median(seconds)
        rows[way] = {"median": middle, "least": min(seconds), "most": max(seconds)}
        spread = f"{min(seconds):.3f} to {max(seconds):.3f}"
        print(f"{WAYS[way]:28} {middle:.3f} s ({spread})  x {middle / plain:.3f}")
    whole = {
        **metadata(torch.device("cpu")),
        "size": asked.size,
        "beam": asked.beam,
        "sentences": SENTENCES,
        "tokens": LENGTH,
        "seconds": rows,
    }
    RESULT.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
