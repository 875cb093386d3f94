"""What patience costs and changes: python benchmarks/patience.py MODEL --source FILE --target FILE

Beam search with `patience` 1 (the default) beside a search that goes on while a better hypothesis
is possible (`decode.patience: null`): CPU time with one thread, in turn, outputs that differ, BLEU.
Where the model folder has an export to CTranslate2, its beam search is measured beside them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from systems import metadata

import transduce

ALL = 100.0  # times the beam: no search has as many hypotheses that end


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = transduce.load(options.model)
    sources = options.source.read_text("utf-8").splitlines()
    references = options.target.read_text("utf-8").splitlines()
    ways: dict[str, Callable[[], list[str]]] = {
        "patience 1": lambda: texts(model, sources, options.beam, 1.0),
        "no better one possible": lambda: texts(model, sources, options.beam, ALL),
    }
    if (exported := options.model / "ctranslate2").is_dir():
        ways["CTranslate2"] = ctranslate2_way(model, exported, sources, options.beam)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outputs: dict[str, list[str]] = {}
    for turn in range(options.rounds + 1):  # the first warms up
        for name, run in ways.items():
            start = time.process_time()
            outputs[name] = run()
            if turn:
                seconds[name].append(time.process_time() - start)
    one, best = outputs["patience 1"], outputs["no better one possible"]
    found: dict[str, Any] = {
        "facts": metadata(torch.device("cpu")),
        "sentences": len(sources),
        "beam": options.beam,
        "cpu_seconds": seconds,
        "differ": sum(a != b for a, b in zip(one, best, strict=True)),
        "bleu": {
            name: sacrebleu.corpus_bleu(outputs[name], [references]).score
            for name in ("patience 1", "no better one possible")
        },
    }
    for name, each in seconds.items():
        print(f"{name}: {statistics.median(each):.2f} s ({min(each):.2f} to {max(each):.2f})")
    print(f"outputs that differ: {found['differ']} of {len(sources)}; BLEU: {found['bleu']}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def texts(model: Any, sources: list[str], beam: int, patience: float) -> list[str]:
    return [output.text for output in model.run(sources, beam=beam, patience=patience)]


def ctranslate2_way(
    model: Any, folder: Path, sources: list[str], beam: int
) -> Callable[[], list[str]]:
    """Its own settings: it stops at patience 1 too. Sources are cut into tokens beforehand."""
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder), device="cpu", compute_type="float32", intra_threads=1, inter_threads=1
    )
    tokens = [output.source_tokens for output in model.run(sources, beam=1)]

    def run() -> list[str]:
        results = translator.translate_batch(
            tokens, beam_size=beam, max_batch_size=1024, batch_type="tokens"
        )
        return [" ".join(result.hypotheses[0]) for result in results]

    return run


if __name__ == "__main__":
    main()
