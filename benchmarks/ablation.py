"""What the attention heads of a trained translation model are worth, and what pruning gains.

    python benchmarks/ablation.py MODEL --data FOLDER [--pairs 200] [--budget 0.05]

Every head is switched off in turn on the first pairs of the validation set; then heads are pruned
greedily. Both go by loss. The model without the heads that can go for --budget nats per token is
compared with the whole one on the test set, which chose nothing: BLEU with paired intervals,
parameters, bytes, and seconds to translate the same sentences. Both models take turns in one
process with one thread; seconds are of that thread's work, so what else the machine does counts
little. FOLDER has the files of Multi30k (val.en.gz, test_2016_flickr.en.gz, the same in .de).
Writes benchmarks/results/ablation.json, of which tools/make_results.py makes a page, and
docs/figures/ablation.png.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import torch
from systems import metadata

from transduce.evaluation.bootstrap import paired_difference
from transduce.evaluation.items import Item
from transduce.inspection.ablation.measure import (
    Trial,
    measure_heads,
    prune_greedily,
    pruned,
)
from transduce.inspection.ablation.show import Ablation, draw_ablation
from transduce.tasks.transduce import Model, load

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).parent / "results" / "ablation.json"
FIGURE = ROOT / "docs" / "figures" / "ablation.png"
SENTENCES, ROUNDS = 100, 7


def read_items(folder: Path, name: str, pairs: int | None) -> list[Item]:
    english, german = (
        gzip.decompress((folder / f"{name}.{language}.gz").read_bytes()).decode().split("\n")
        for language in ("en", "de")
    )
    both = list(zip(english, german, strict=True))[:pairs]
    return [Item(source, [target]) for source, target in both if source]


def timed(models: dict[str, Model], sources: list[str], beam: int) -> dict[str, dict[str, float]]:
    """Seconds of this process for all sources: the median of rounds, the least and the most."""
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for number in range(ROUNDS + 1):
        for name in models if number % 2 else reversed(models):
            start = time.process_time()
            models[name].run(sources, beam=beam)
            if number:  # the first warms up
                seconds[name].append(time.process_time() - start)
    return {
        name: {"median": statistics.median(one), "least": min(one), "most": max(one)}
        for name, one in seconds.items()
    }


def compared(model: Model, smaller: Model, items: list[Item]) -> dict[str, Any]:
    """Size, speed and BLEU of both."""
    models = {"whole": model, "pruned": smaller}
    found: dict[str, Any] = {
        "parameters": {
            name: sum(p.numel() for p in one.network.parameters()) for name, one in models.items()
        },
        "bytes": {},
        "seconds": {},
    }
    for name, one in models.items():
        with tempfile.TemporaryDirectory() as folder:
            one.save(Path(folder) / "model")
            found["bytes"][name] = (Path(folder) / "model" / "model.safetensors").stat().st_size
    sources = [item.source for item in items[:SENTENCES]]
    for beam in (1, 5):
        found["seconds"][f"beam {beam}"] = timed(models, sources, beam)
    rows = {name: Trial(one, items, "bleu").rows() for name, one in models.items()}
    change = paired_difference(rows["whole"], rows["pruned"])
    found["bleu"] = {
        **{name: score(one.sum(axis=0)) for name, (one, score) in rows.items()},
        "change": change.to_json(),
        "items": len(items),
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--candidates", type=int, default=2)
    parser.add_argument("--budget", type=float, default=0.05)
    parser.add_argument("--test-pairs", type=int, default=1000)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    began = time.process_time()
    model = load(asked.model, "cpu", "float32")
    trial = Trial(model, read_items(asked.data, "val", asked.pairs), "loss")
    value, importances = measure_heads(trial)
    print(f"{len(importances)} heads after {time.process_time() - began:.0f} s", flush=True)
    removals = prune_greedily(trial, importances, candidates=asked.candidates)
    name = asked.model.resolve().name
    ablation = Ablation(name, "loss", value, "multi30k valid", asked.pairs, importances, removals)
    draw_ablation(ablation, FIGURE)
    off = [step.head for step in removals[: ablation.affordable[asked.budget]]]
    test = read_items(asked.data, "test_2016_flickr", asked.test_pairs)
    found = {
        **metadata(torch.device("cpu")),
        "ablation": ablation.to_json(),
        "removed": len(off),
        "budget": asked.budget,
        "pruned": compared(model.freeze(), pruned(model, off).freeze(), test),
        "seconds": round(time.process_time() - began, 1),
    }
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(f"loss {value:.4f}; heads that can go, by nats: {ablation.affordable}")
    print(json.dumps(found["pruned"], indent=1))


if __name__ == "__main__":
    main()
