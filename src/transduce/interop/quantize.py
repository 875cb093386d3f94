"""Quantization: a model folder in bfloat16 or int8, which is loaded and used as any other.

bfloat16 halves every weight, int8 quarters the matrices (runtime/int8_file.py). The file records
the precision, and search on a CPU computes in it.
"""

from __future__ import annotations

from pathlib import Path

import torch

from transduce.checksums import listed
from transduce.errors import ModelError
from transduce.models.weights import weights_of
from transduce.runtime.int8_file import quantize_weights
from transduce.storage import write_tensors
from transduce.tasks.folder import WEIGHTS, format_metadata
from transduce.tasks.transduce import Transducer

KINDS = ("bfloat16", "int8")


def export(model: Transducer, folder: Path, quantize: str | None) -> None:
    """Write a model folder with quantized weights, which `load` opens; or ModelError."""
    if quantize not in KINDS:
        given = "is left out" if quantize is None else f"is {quantize}"
        raise ModelError(f"quantize {given}; for native it must be one of {', '.join(KINDS)}")
    weights = weights_of(model.network)
    if quantize == "int8":
        weights = quantize_weights(weights)
    else:
        weights = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    model.save_definition(folder)
    metadata = {**format_metadata(), "precision": quantize}
    with listed(folder / WEIGHTS) as announce:
        write_tensors(folder / WEIGHTS, weights, metadata, announce=announce)
