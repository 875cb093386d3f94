"""How many right and wrong pairs the filter of languages leaves out, and how fast filters are.

    python benchmarks/filters.py FOLDER [--pairs 10000] [--json FILE]

FOLDER holds train.en, train.de and train.fr of Multi30k, plain or .gz. Right pairs are English and
German; wrong ones have their sides swapped, French for German, or English on both sides. Speed is
of one core, in seconds of the processor, of the second time that pairs are read: as in a corpus,
most words have occurred before. Writes benchmarks/results/filters.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from systems import metadata

from transduce import recipe
from transduce.corpora.unpack import open_compressed
from transduce.data.filters.rules import PairRules, hashes_of
from transduce.data.text.pairs import PairColumns

RESULTS = Path(__file__).parent / "results" / "filters.json"


def lines_of(folder: Path, language: str, count: int) -> list[str]:
    path = next(folder.glob(f"train.{language}*"))
    with open_compressed(path) as file:
        return [raw.decode("utf-8").rstrip("\n") for raw in islice(file, count)]


def columns(sources: list[str], targets: list[str]) -> PairColumns:
    size = len(sources)
    return PairColumns(sources, targets, ["train"] * size, list(range(1, size + 1)))


def rate(call: Callable[[PairColumns], object], pairs: PairColumns) -> float:
    call(pairs)
    began = time.process_time()
    call(pairs)
    return len(pairs) / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=RESULTS)
    asked = parser.parse_args()
    languages_read = ("en", "de", "fr")
    english, german, french = (lines_of(asked.folder, code, asked.pairs) for code in languages_read)
    kinds = {
        "right": columns(english, german),
        "swapped": columns(german, english),
        "French for German": columns(english, french),
        "English twice": columns(english, english),
    }
    languages = recipe.Languages(source="en", target="de")
    found: dict[str, Any] = {"facts": metadata(torch.device("cpu")), "pairs": len(english)}
    for least in (0.9, 0.95, 0.99):
        rules = PairRules(recipe.Filters(language=least), languages, tagged=False)
        shares = {kind: float((rules.reasons(pairs) > 0).mean()) for kind, pairs in kinds.items()}
        found[f"language: {least}"] = shares
        print(least, shares, flush=True)
    lengths = PairRules(
        recipe.Filters(min_length=2, length_ratio=4, copies=True), None, tagged=False
    )
    found["pairs_a_second"] = {
        "language": rate(rules.reasons, kinds["right"]),
        "min_length, length_ratio, copies": rate(lengths.reasons, kinds["right"]),
        "duplicates": rate(hashes_of, kinds["right"]),
    }
    print(found["pairs_a_second"])
    asked.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
