"""The folder of an adapter: a model folder whose weights are the adapter's alone.

The metadata of model.safetensors name the model beneath it (its folder and the fingerprint of its
weights). Recipe and vocabularies lie beside it as in every model folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from transduce.adapters import Adapter, AdapterState, Base, LowRankWeights
from transduce.checksums import listed
from transduce.errors import ModelError
from transduce.storage import read_tensor_metadata, read_tensors, write_tensors
from transduce.tasks.folder import WEIGHTS, check_format, check_sums, format_metadata

ADAPTER_KEY = "adapter"
WHOLE = "whole/"
PARTS = ("A", "B", "magnitude")


def is_adapter(folder: Path) -> bool:
    """Whether a model folder holds an adapter, not a whole model."""
    return ADAPTER_KEY in read_tensor_metadata(folder / WEIGHTS)


def write_adapter(
    folder: Path, state: AdapterState, base: Base, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write the weights of an adapter into its folder, with metadata."""
    tensors: dict[str, Tensor] = {f"{WHOLE}{name}": value for name, value in state.whole.items()}
    for name, one in state.low_rank.items():
        for part, value in zip(PARTS, (one.A_RD, one.B_FR, one.magnitude_F), strict=True):
            if value is not None:
                tensors[f"{name}.{part}"] = value
    about = {
        "scales": {name: one.scale for name, one in state.low_rank.items()},
        "base": {"folder": base.folder, "beside": base.beside, "fingerprint": base.fingerprint},
    }
    ready = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with listed(folder / WEIGHTS) as announce:
        whole = {**format_metadata(), ADAPTER_KEY: about, **(metadata or {})}
        write_tensors(folder / WEIGHTS, ready, whole, announce=announce)


def read_adapter(folder: Path) -> Adapter:
    """The adapter of a folder that training wrote. Raises ModelError, CheckpointError."""
    if (folder / "adapter_config.json").is_file() and not (folder / WEIGHTS).is_file():
        raise ModelError(
            f"{folder} is an adapter of PEFT; read it with transduce.adapters.peft.read_peft, or "
            f"with `transduce run MODEL --adapter {folder}`"
        )
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} is not the folder of an adapter: it has no {WEIGHTS}")
    check_format(folder)
    tensors, metadata = read_tensors(folder / WEIGHTS)
    check_sums(folder, WEIGHTS)
    about = metadata.get(ADAPTER_KEY)
    if about is None:
        raise ModelError(f"{folder} is a whole model, not an adapter; use it as a model")
    try:
        low_rank = {
            str(name): LowRankWeights(
                tensors[f"{name}.A"],
                tensors[f"{name}.B"],
                _finite(scale),
                tensors.get(f"{name}.magnitude"),
            )
            for name, scale in about["scales"].items()
        }
        base = Base(*(str(about["base"][key]) for key in ("folder", "beside", "fingerprint")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(
            f"the adapter in {folder} cannot be used: its metadata are damaged ({error}); restore "
            f"it from a copy"
        ) from None
    whole = {
        name.removeprefix(WHOLE): value for name, value in tensors.items() if name.startswith(WHOLE)
    }
    return Adapter(folder, AdapterState(low_rank, whole), base)


def _finite(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError("a scale is not finite")
    return float(value)


def base_of(folder: Path, beneath: Path, fingerprint: str) -> Base:
    """What the adapter in `folder` says of the model in `beneath`."""
    place = beneath.resolve()
    return Base(str(place), os.path.relpath(place, folder.resolve()), fingerprint)


def find_base(adapter: Adapter, base: str | Path | None) -> Path:
    """The folder of the model beneath an adapter: the given one, or where it was.

    Raises ModelError where it is not there any more.
    """
    if base is not None:
        return Path(base)
    assert adapter.base is not None
    places = [Path(adapter.base.folder), adapter.folder.resolve() / adapter.base.beside]
    for place in places:
        if (place / WEIGHTS).is_file():
            return place
    raise ModelError(
        f"the adapter {adapter.folder} was trained on the model {adapter.base.folder}, which is "
        f"not there any more; say where it is: --base FOLDER, or "
        f"transduce.load({str(adapter.folder)!r}, base=FOLDER)"
    )
