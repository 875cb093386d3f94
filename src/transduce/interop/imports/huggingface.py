"""A model folder of Hugging Face: its configuration, its weights, and what an export needs again.

Nothing of a folder is ever run: safetensors hold numbers alone, and pytorch_model.bin, a pickle, is
read by an interpreter of our own that builds tensors and calls nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from transduce.checksums import list_files, listed
from transduce.errors import ModelError
from transduce.interop.imports.configuration import (
    Configuration,
    describe,
    read_configuration,
    read_json,
)
from transduce.interop.imports.pickled import read_checkpoint
from transduce.storage import make_folder, read_tensors, write_json, write_tensors

CONFIG = "config.json"
ORIGIN = "import.json"
"""In a model folder that was imported: what the model was, for an export of the same weights."""
ORIGIN_TENSORS = "import.safetensors"
KEPT_FILES = "import"


def read_config(folder: Path) -> Configuration:
    """config.json of a folder of Hugging Face. Raises ModelError."""
    return read_configuration(folder / CONFIG)


def model_type(source: Path) -> str:
    """The `model_type` of a folder of Hugging Face, such as "marian"; empty for anything else."""
    try:
        return read_config(source).text("model_type", "") if source.is_dir() else ""
    except ModelError:
        return ""


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder by their names there, on the CPU, in the precision they are stored
    in.

    Of model.safetensors, its shards (model.safetensors.index.json), or pytorch_model.bin and its
    shards, in this order. Raises ModelError and CheckpointError.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if index.is_file():
            return _read_shards(index)
        if (folder / name).is_file():
            return _read_file(folder / name)
    raise ModelError(
        f"{folder} has no weights: no model.safetensors, no pytorch_model.bin, no index of shards; "
        f"download them too"
    )


def _read_shards(index: Path) -> dict[str, Tensor]:
    places = read_configuration(index).section("weight_map")
    names = {places.text(name) for name in places}
    if not names:
        raise ModelError(f"{index} has no weight_map; download it again")
    weights: dict[str, Tensor] = {}
    for shard in sorted(names):
        if Path(shard).name != shard or not shard.isprintable():
            raise ModelError(
                f"{index} names the shard {describe(shard)}, which is not a file of its folder"
            )
        weights |= _read_file(index.parent / shard)
    if missing := sorted(set(places) - set(weights)):
        raise ModelError(f"{missing[0]} is in {index}, but in no shard; download the shards again")
    return weights


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return read_tensors(path)[0]
    if not path.is_file():
        raise ModelError(f"the shard {path} is missing; download it too")
    checkpoint = read_checkpoint(path)
    weights = checkpoint.tensors(checkpoint.root)
    if len(weights) != len(checkpoint.root):
        raise ModelError(
            f"{path} holds other things than the weights of one model by name; convert it to "
            f"safetensors where it comes from"
        )
    return weights


def write_origin(folder: Path, origin: dict[str, Any], source: Path | None = None) -> None:
    """Keep in a model folder what an imported model was: its format, configuration and ids.

    The tensors of `origin["tensors"]`, which the network has no place for, go to a file of their
    own; the `origin["files"]` of the source are copied.
    """
    tensors = origin.get("tensors") or {}
    if tensors:
        with listed(folder / ORIGIN_TENSORS) as announce:
            write_tensors(folder / ORIGIN_TENSORS, tensors, {}, announce=announce)
    if source is not None and origin.get("files"):
        make_folder(folder / KEPT_FILES)
        for name in origin["files"]:
            shutil.copyfile(source / name, folder / KEPT_FILES / name)
        list_files(folder, *(folder / KEPT_FILES / name for name in origin["files"]))
    with listed(folder / ORIGIN) as announce:
        plain = {key: value for key, value in origin.items() if key != "tensors"}
        write_json(folder / ORIGIN, plain, announce)


def read_origin_tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors that `write_origin` kept."""
    path = folder / ORIGIN_TENSORS
    return read_tensors(path)[0] if path.is_file() else {}


def read_origin(folder: Path) -> dict[str, Any] | None:
    """What `write_origin` kept; None in the folder of a model that was not imported."""
    return read_json(folder / ORIGIN) if (folder / ORIGIN).is_file() else None
