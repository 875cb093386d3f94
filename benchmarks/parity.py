"""Does a model say the same in every form it can be exported to?

    python benchmarks/parity.py MODEL [--limit 1014] [--source FILE --target FILE]

Makes all exports of a trained model folder (CTranslate2 in float32 and int8, ONNX, our own engine
in bfloat16 and int8) and gathers their reports: differences of log-probabilities, shares of
identical hypotheses, metrics, sizes and speeds, greedily and by the recipe's beam, on the recipe's
validation set or on two files. What is beyond a threshold is reported too. Trains nothing. Prints
the reports and writes benchmarks/results/parity.json.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from systems import end, metadata

from transduce.cores import count_cores
from transduce.errors import ModelError
from transduce.interop.export import export_folder
from transduce.runtime.packed_weight import has_bfloat16
from transduce.tasks.transduce import load

RESULTS = Path(__file__).parent / "results" / "parity.json"
EXPORTS: list[tuple[str, str | None]] = [
    ("ctranslate2", None),
    ("ctranslate2", "int8"),
    ("onnx", None),
    ("native", "bfloat16"),
    ("native", "int8"),
]


def compared(
    model: Path, files: tuple[Path | None, Path | None], limit: int, without: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The report of every export, and why others could not be made."""
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for to, quantize in EXPORTS:
            name = f"{to} {quantize or 'float32'}"
            if {to, name} & set(without.split(",")):
                continue
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
                why = str(error).replace(f"{scratch}/", "").replace(f"{model.parent}/", "")
                left_out[name] = why
                print(f"{name} is left out: {why}", flush=True)
                continue
            rows.append({"export": name, **asdict(parity)})
            print("\n".join([name, *(f"  {line}" for line in parity.lines())]), flush=True)
    return rows, left_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--source", type=Path, metavar="FILE")
    parser.add_argument("--target", type=Path, metavar="FILE")
    parser.add_argument("--limit", type=int, default=1014)
    parser.add_argument("--without", default="", help='such as "onnx,ctranslate2 bfloat16"')
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    network = load(arguments.model).network
    files = (arguments.source, arguments.target)
    rows, left_out = compared(arguments.model, files, arguments.limit, arguments.without)
    found = metadata(torch.device("cpu")) | {"cores": count_cores(), "bfloat16": has_bfloat16()}
    for package in ("ctranslate2", "onnxruntime"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    whole = {
        "facts": found,
        "model": arguments.model.name,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "left_out": left_out,
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(whole, indent=1) + "\n", "utf-8")
    end(left_out)


if __name__ == "__main__":
    main()
