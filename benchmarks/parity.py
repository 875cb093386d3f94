"""Does a model say the same in every form it can be exported to?

    python benchmarks/parity.py MODEL [--limit 1014] [--source FILE --target FILE]

Makes all exports of a trained model folder (CTranslate2 in float32 and int8, ONNX, our own engine
in bfloat16 and int8) and puts their reports side by side: differences of log-probabilities, shares
of identical hypotheses, metrics, sizes and speeds, on the recipe's validation set or on two files.
One beyond a threshold is reported too, and marked. Trains nothing. Prints a table and writes
benchmarks/results/parity.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from systems import facts

from transduce.cores import count_cores
from transduce.errors import ModelError
from transduce.interop.export import export_folder
from transduce.transducer import load

RESULTS = Path(__file__).parent / "results" / "parity.json"
EXPORTS: list[tuple[str, str | None]] = [
    ("ctranslate2", None),
    ("ctranslate2", "int8"),
    ("onnx", None),
    ("native", "bfloat16"),
    ("native", "int8"),
]


def compared(
    model: Path, files: tuple[Path | None, Path | None], limit: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The report of every export, and why others could not be made."""
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for to, quantize in EXPORTS:
            name = f"{to} {quantize or 'float32'}"
            place = Path(scratch) / name.replace(" ", "-")
            try:
                _, parity = export_folder(
                    model,
                    to,
                    quantize=quantize,
                    folder=place,
                    files=files,
                    limit=limit,
                    allow=True,
                )
            except ModelError as error:
                left_out[name] = str(error)
                print(f"{name} is left out: {error}", flush=True)
                continue
            rows.append({"export": name, **asdict(parity)})
            print("\n".join([name, *(f"  {line}" for line in parity.lines())]), flush=True)
    return rows, left_out


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'':20}{'log p, most':>12}{'mean':>10}{'greedy':>9}{'beam':>9}  "
        f"{'metrics, before and after':34}{'size':>7}{'speed':>8}"
    ]
    for row in rows:
        metrics = ", ".join(
            f"{name} {before:.2f} {after:.2f}" for name, (before, after) in row["metrics"].items()
        )
        size = row["bytes"][1] / row["bytes"][0]
        speed = row["sentences_per_second"][1] / row["sentences_per_second"][0]
        lines.append(
            f"{row['export']:20}{row['largest_difference']:12.2g}{row['mean_difference']:10.2g}"
            f"{row['identical_greedy']:9.2%}{row['identical_searched']:9.2%}  {metrics:34}"
            f"{size:6.2f}x{speed:7.2f}x{'  beyond a threshold' if row['faults'] else ''}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--source", type=Path, metavar="FILE")
    parser.add_argument("--target", type=Path, metavar="FILE")
    parser.add_argument("--limit", type=int, default=1014)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    network = load(arguments.model).network
    files = (arguments.source, arguments.target)
    rows, left_out = compared(arguments.model, files, arguments.limit)
    print(table(rows))
    found = facts(torch.device("cpu")) | {"threads": count_cores()}
    for package in ("ctranslate2", "onnxruntime"):
        found[package] = importlib.metadata.version(package)
    whole = {
        "facts": found,
        "model": arguments.model.name,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "left_out": left_out,
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
