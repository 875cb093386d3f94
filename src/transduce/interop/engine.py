"""Open a model folder with a given inference engine, or with the one it was exported for."""

from __future__ import annotations

from pathlib import Path

from transduce.decoding.engine import Engine
from transduce.errors import ModelError
from transduce.interop import ctranslate2, onnx
from transduce.interop.adapters import open_adapter
from transduce.interop.ctranslate2_translator import Translator
from transduce.interop.onnx_session import Session
from transduce.models.weights import no_weights
from transduce.tasks.folder import WEIGHTS, check_sums, read_definition
from transduce.tasks.model import Origin
from transduce.tasks.model_size import check_layers, count_parameters
from transduce.tasks.transduce import Model, Transducer, load

FILES = {"ctranslate2": ctranslate2.MODEL, "onnx": onnx.DECODER}
"""The engines, and the file that identifies an export for each."""


def open_model(
    folder: Path,
    engine: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    *,
    adapter: Path | None = None,
    base: Path | None = None,
    members: bool = True,
) -> Model:
    """The model in a folder, run by an engine; by default by transduce itself, unless the folder is
    an export.

    An export is searched in the folder and in its subfolder of the engine's name. adapter: one that
    the model uses, ours or PEFT's. base and members: as in `load`. Raises ModelError.
    """
    if engine is None:
        exported = next((name for name, file in FILES.items() if (folder / file).is_file()), None)
        if exported is None or (folder / WEIGHTS).is_file():
            model = load(folder, device, precision, base=base, members=members)
            if adapter is not None:
                model.use_adapter(model.add_adapter(open_adapter(adapter, model)))
            return model
        engine = exported
    if adapter is not None or base is not None:
        raise ModelError(
            f"{engine} takes no adapters; merge it first (`transduce merge`), then export the model"
        )
    if precision != "auto":
        raise ModelError(
            f"an export has its precision already; leave --precision out, or quantize in "
            f"`transduce export {folder} --to {engine}`"
        )
    path = exported_folder(folder, engine)
    recipe, source_tokens, target_tokens = read_definition(path)
    check_sums(path)
    check_layers(recipe)
    count_parameters(Transducer, recipe, source_tokens, target_tokens)  # or says that it cannot be
    with no_weights():
        model = Transducer.create(recipe, source_tokens, target_tokens)
    model.network.eval()
    model.engine = _engine(path, engine, model, device)
    model.origin = Origin(path, recipe.data)
    return model


def exported_folder(folder: Path, engine: str) -> Path:
    """The folder of an export: the folder itself, or its subfolder of the engine's name."""
    if engine not in FILES:
        raise ModelError(f"there is no engine {engine}; there are {', '.join(FILES)}")
    for path in (folder, folder / engine):
        if (path / FILES[engine]).is_file():
            return path
    raise ModelError(
        f"{folder} has not been exported for {engine}: transduce export {folder} --to {engine}"
    )


def _engine(path: Path, name: str, model: Transducer, device: str) -> Engine:
    if name == "onnx":
        if device.partition(":")[0] not in ("auto", "cpu"):
            raise ModelError(
                f"ONNX Runtime is used only on the CPU here, not on {device}: leave out --device, "
                f"or use --engine ctranslate2"
            )
        return Session(path, model.recipe)
    return Translator(path, model.recipe, model.source_tokens, model.target_tokens, device)
