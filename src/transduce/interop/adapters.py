"""Adapters in our folders and in PEFT's own files: opening, merging, converting."""

from __future__ import annotations

from pathlib import Path

from transduce.adapters import Adapter
from transduce.adapters.peft import CONFIG, read_peft, write_peft
from transduce.errors import ModelError
from transduce.hub import resolve_model
from transduce.storage import replaced_folder
from transduce.tasks.adapter_folder import read_adapter
from transduce.tasks.folder import WEIGHTS, holds_run
from transduce.tasks.transduce import Model, load


def open_adapter(folder: str | Path, model: Model) -> Adapter:
    """The adapter of a folder, for a model. Raises ModelError, CheckpointError."""
    path = resolve_model(folder)
    if (path / CONFIG).is_file() and not (path / WEIGHTS).is_file():
        return read_peft(path, model)
    return read_adapter(path)


def export_peft(adapter: Path, output: Path | None = None) -> Path:
    """Write an adapter of ours as PEFT's own files, by default into its subfolder peft.

    Raises ModelError for a whole model, and for what those files cannot hold.
    """
    path = resolve_model(adapter)
    read = read_adapter(path)
    place = output or path / "peft"
    write_peft(read.state, load(path, members=False), place, _exported(read))
    return place


def _exported(adapter: Adapter) -> str:
    """The export to Hugging Face of the model beneath an adapter, where it lies beside it."""
    place = Path(adapter.base.folder) / "huggingface" if adapter.base else None
    return str(place) if place is not None and (place / "config.json").is_file() else ""


def merge_folder(adapter: Path, output: Path, base: Path | None = None) -> Model:
    """Write an ordinary model folder: an adapter, merged into the model beneath it.

    base: that model; needed for PEFT's files, and where it has moved. Raises ModelError.
    """
    if holds_run(output):
        raise ModelError(f"{output} already holds a model; choose another --output")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ModelError(f"{output} is not empty; choose another --output")
    path = resolve_model(adapter)
    if (path / CONFIG).is_file() and not (path / WEIGHTS).is_file():
        if base is None:
            raise ModelError(
                f"{adapter} is an adapter of PEFT, which names no model folder; give the model "
                f"that it belongs to: --base FOLDER"
            )
        model = load(base, members=False)
        model.use_adapter(model.add_adapter(read_peft(path, model)))
    else:
        read_adapter(path)  # a whole model is refused
        model = load(path, base=base, members=False)
    # The folder holds a whole model: its recipe no longer needs the one beneath it.
    train = model.recipe.train.model_copy(update={"start": None, "adapter": None})
    model.recipe = model.recipe.model_copy(update={"train": train})
    with replaced_folder(output) as folder:
        model.save(folder)
    return model
