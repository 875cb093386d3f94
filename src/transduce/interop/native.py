"""A model folder of our own in fewer bits: a half or a quarter as large, and computed in them.

bfloat16 is what every weight is rounded to, int8 what the matrices are; see models/levels.py. The
folder says what the model says with that precision, to the last bit.
"""

from __future__ import annotations

from pathlib import Path

import torch

from transduce.errors import ModelError
from transduce.folder import WEIGHTS
from transduce.models.levels import pack_levels
from transduce.models.weights import weights_of
from transduce.nn.quantized import KINDS
from transduce.storage import write_tensors
from transduce.transducer import Transducer


def export(model: Transducer, folder: Path, quantize: str | None) -> None:
    """Write a model folder with the weights in fewer bits, which `load` opens; or ModelError."""
    if quantize not in KINDS:
        said = "is left out" if quantize is None else f"is {quantize}"
        raise ModelError(f"quantize {said}; for native it must be one of {', '.join(KINDS)}")
    if quantize == "int8":
        weights = pack_levels(model.network)
    else:
        exact = weights_of(model.network)
        weights = {name: weight.to(torch.bfloat16) for name, weight in exact.items()}
    model.save_frame(folder)
    write_tensors(folder / WEIGHTS, weights, {"format": "transduce 1", "precision": quantize})
