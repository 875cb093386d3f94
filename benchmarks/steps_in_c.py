"""Decoding steps in C beside torch: python benchmarks/steps_in_c.py MODEL --input FILE

CPU time of search with one thread, in turn, for greedy search, the recipe's beam, and the beam for
one source after the other; the outputs and scores of both are compared. Both sides have the same
encoder and the same packed weights. The file has a source, a target and tags in each row (TSV).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from systems import metadata

import transduce
from transduce.data.text.tags import with_tags
from transduce.tasks.transduce import Transducer

ALONE = 60  # sources that are given one after the other


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [line.split("\t") for line in options.input.read_text("utf-8").splitlines()]
    sources = [with_tags(row[0], row[2:]) for row in rows[: options.rows]]
    models = {name: opened(options.model, in_c=name == "C") for name in ("torch", "C")}
    ways: dict[str, Callable[[Transducer], list[Any]]] = {
        "greedy": lambda model: model.run(sources, beam=1),
        "beam": lambda model: model.run(sources),
        "one by one": lambda model: [model.run([one])[0] for one in sources[:ALONE]],
    }
    found: dict[str, Any] = {"facts": metadata(torch.device("cpu")), "sources": len(sources)}
    for way, run in ways.items():
        seconds: dict[str, list[float]] = {name: [] for name in models}
        outputs: dict[str, list[Any]] = {}
        for turn in range(options.rounds + 1):  # the first warms up
            for name, model in models.items():
                start = time.process_time()
                outputs[name] = run(model)
                if turn:
                    seconds[name].append(time.process_time() - start)
        pairs = list(zip(outputs["torch"], outputs["C"], strict=True))
        times = [a / b for a, b in zip(seconds["torch"], seconds["C"], strict=True)]
        found[way] = {
            "cpu_seconds": {
                name: [round(one, 3) for one in some] for name, some in seconds.items()
            },
            "times_as_fast": [
                round(one, 2) for one in (min(times), statistics.median(times), max(times))
            ],
            "outputs": len(pairs),
            "same_texts": sum(one.text == other.text for one, other in pairs),
            "scores_apart": max(abs(one.score - other.score) for one, other in pairs),
        }
        print(way, json.dumps(found[way]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


def opened(folder: Path, *, in_c: bool) -> Transducer:
    model = transduce.load(folder, device="cpu")
    assert isinstance(model, Transducer)
    if not in_c:
        model._plain_steps = lambda: model._packed_steps(lambda network: network)  # type: ignore[method-assign]
    return model


if __name__ == "__main__":
    main()
