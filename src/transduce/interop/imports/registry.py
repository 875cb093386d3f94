"""The formats that can be imported, and which of them a source is in."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, cast

from transduce.errors import ModelError
from transduce.hub import is_hub_address, parse_address, resolve_import
from transduce.interop.imports.huggingface import write_origin
from transduce.interop.imports.languages import set_languages
from transduce.memory import out_of_memory
from transduce.registry import load_installed, register
from transduce.storage import replaced_folder
from transduce.tasks.model import Model

# Asked in this order; each is a module with the functions of `Format`.
FORMATS: tuple[str, ...] = (
    "transduce.whisper.import_huggingface",
    "transduce.whisper.import_ctranslate2",
    "transduce.interop.imports.encoder_decoders",
    "transduce.interop.imports.t5",
    "transduce.interop.imports.language_models",
    "transduce.interop.imports.ctranslate2",
    "transduce.interop.imports.g2p_en",
    "transduce.interop.imports.fairseq",
)


class Format(Protocol):
    """A module that reads the models of one toolkit."""

    NAME: str
    """As it is told to a user, such as "Marian, of Hugging Face"."""

    def recognises(self, source: Path) -> bool:
        """Whether a folder or file is in this format; reads as little as possible."""
        ...

    def read(self, source: Path) -> Model:
        """The model; its `imported` is kept in the folder, as import.json, where it is set.

        Raises ModelError, with the reason, for what we have no equal of.
        """
        ...


def find_format(source: Path) -> Format:
    """The format of a folder or file. Raises ModelError where it is none that we know."""
    if not source.exists():
        raise ModelError(f"there is no file or folder {source}")
    for found in _formats():
        if found.recognises(source):
            return found
    if (source / "recipe.yaml").is_file():
        raise ModelError(f"{source} is a model of transduce already: use it as it is")
    raise ModelError(
        f"{source} is in no format that can be imported; docs/guides/import.md lists them"
    )


def _formats() -> Iterator[Format]:
    """Those of plugins first: they may know a folder better than what it looks like."""
    load_installed()
    for registered in register.importer.values():
        yield registered.part()
    for name in FORMATS:
        yield cast("Format", importlib.import_module(name))


def import_model(
    source: str | Path, output: Path, languages: tuple[str | None, str | None] = (None, None)
) -> tuple[Model, str]:
    """Write the model of another toolkit as a model folder; the model, and what it was.

    source: a folder or file, or hf://user/name[@revision]. languages: of source and target by
    default, for a model with a token for each language. Raises ModelError where there is something
    already, and for what cannot be imported.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ModelError(f"{output} is not empty; give another --output")
    path = resolve_import(source)
    try:
        found = find_format(path)
        model = found.read(path)
        _check_finite(model, path)
        if is_hub_address(source):  # the folder of a snapshot is called as its commit
            name = parse_address(str(source)).repository.rpartition("/")[2]
            model.recipe = model.recipe.model_copy(update={"name": name})
        set_languages(model, *languages)
        with replaced_folder(output) as folder:
            model.save(folder)
            if model.imported is not None:
                write_origin(folder, model.imported, path)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise ModelError(
            f"there is not enough memory to import {path}: end other programs, or use a machine "
            f"with more memory"
        ) from None
    return model, found.NAME


def _check_finite(model: Model, path: Path) -> None:
    """Raise ModelError where weights are no numbers: the model would have no output."""
    for name, weight in model.network.state_dict().items():
        if weight.is_floating_point() and not bool(weight.isfinite().all()):
            raise ModelError(
                f"{path} has NaN or infinite weights (in what is {name} here); get another copy of "
                f"the model"
            )
