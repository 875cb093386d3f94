"""Export a model folder: converted in a temporary folder, compared, and only then put in place."""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from transduce.checksums import list_files, strangers
from transduce.data.text.pairs import Pair, read_pairs
from transduce.data.text.trust import check_reads
from transduce.data.tokens.bleu_tokenizer import bleu_tokenizer
from transduce.errors import DataError, ModelError
from transduce.evaluation.items import items_of
from transduce.hub import in_hub_cache
from transduce.interop import ctranslate2, onnx
from transduce.interop import quantize as native
from transduce.interop.engine import FILES
from transduce.interop.huggingface import export as huggingface
from transduce.interop.imports.huggingface import read_origin
from transduce.interop.parity import (
    REPORT,
    Compared,
    NotCompared,
    Parity,
    compare,
    measure_in_subprocess,
    parity_beam,
)
from transduce.recipe import Corpus, ParallelFiles, with_overrides
from transduce.storage import replaced_folder
from transduce.tasks.folder import WEIGHTS
from transduce.tasks.members import folder_in_use
from transduce.tasks.transduce import Model, Transducer, load

EXPORTS = (*FILES, "huggingface", "native")
WHISPER = "transduce.whisper.export"  # a package above this one: by its name
MEASURE_THERE = "transduce.interop.huggingface.measure"
HEAVY = (".bin", ".onnx", ".safetensors")
Report = Parity | NotCompared | Compared
Exported = tuple[Path, Report]
MARKS = {**FILES, "huggingface": huggingface.MODEL}
"""The file that identifies an export of each kind; a native one has our own weights."""


def export_folder(
    model_folder: Path,
    to: str,
    *,
    quantize: str | None = None,
    folder: Path | None = None,
    files: tuple[Path | None, Path | None] = (None, None),
    limit: int = 500,
    allow: bool = False,
    overrides: Sequence[str] = (),
    overwrite: bool = False,
) -> Exported:
    """Export the model in a folder, by default into its subfolder of the engine's name; for native,
    a quantized copy in the subfolder of its precision.

    Raises ModelError if the engine does not support the model, and, unless allowed, if the export
    gives other results than the model: then nothing is put in place.
    """
    if to not in EXPORTS:
        raise ModelError(f"there is no export to {to}; there are {', '.join(EXPORTS)}")
    if quantize is not None and to in ("onnx", "huggingface"):
        raise ModelError(f"weights are not quantized for {to}: leave --quantize out")
    used = folder_in_use(model_folder)
    model = load(used, members=False)
    model.recipe = with_overrides(model.recipe, overrides, ("data.folder",))
    if folder is None and in_hub_cache(model_folder):
        raise ModelError(
            "the model is in the cache of the Hugging Face hub, which is not written to; give the "
            "folder of the export with --output"
        )
    place = folder or model_folder / (quantize or to if to == "native" else to)
    if model.recipe.audio is not None and model.recipe.audio.prompt is not None:
        whisper = importlib.import_module(WHISPER)
        return _put_in_place(
            place, to, overwrite, lambda part: whisper.export(model, part, to, quantize)
        )
    if to == "huggingface" and not isinstance(model, Transducer):
        return _put_in_place(place, to, overwrite, lambda part: _uncompared(model, part))
    if not isinstance(model, Transducer):
        raise ModelError(
            f"{model_folder} is a model of the task {model.recipe.task}; only the task transduce "
            f"are exported"
        )
    if model.recipe.audio is not None:
        raise ModelError(
            f"{model_folder} is a speech model; only models with text sources can be exported"
        )
    why = _why_not_compared(model, to, files)
    if why:
        return _put_in_place(place, to, overwrite, lambda part: _uncompared(model, part, why))
    _check_place(place, to, overwrite)
    pairs, data = _pairs(model, files, limit)

    def convert(part: Path) -> Parity:
        if to == "onnx":
            onnx.export(model, part)
        elif to == "native":
            native.export(model, part, quantize)
        elif to == "huggingface":
            huggingface.export(model, part)
        else:
            ctranslate2.export(model, part, quantize)
        parity = _compared(used, part, model, pairs, to, quantize, data)
        if parity.faults and not allow:
            raise ModelError(
                f"the export is not kept, as {'; '.join(parity.faults)} (--allow-mismatch keeps it)"
            )
        return parity

    return _put_in_place(place, to, overwrite, convert)


def _put_in_place(
    place: Path, to: str, overwrite: bool, convert: Callable[[Path], Report]
) -> Exported:
    """Convert in a temporary folder, and only then replace what was there."""
    _check_place(place, to, overwrite)
    with replaced_folder(place) as part:
        parity = convert(part)
        parity.write(part)
        list_files(part, *strangers(part))
        _check_place(place, to, overwrite)  # again, as comparing may have taken long
    return place, parity


def _why_not_compared(model: Model, to: str, files: tuple[Path | None, Path | None]) -> str:
    """Why an export is not compared with the model; empty: it is."""
    if to != "huggingface":
        return ""
    if importlib.util.find_spec("transformers") is None:
        return "transformers is not installed here: pip install '.[huggingface]'"
    imported = model.origin is not None and read_origin(model.origin.folder) is not None
    if imported and files == (None, None):
        return "an imported model has no validation set: give pairs with --source and --target"
    return ""


def _uncompared(model: Model, part: Path, why: str = "") -> NotCompared:
    huggingface.export(model, part)
    return NotCompared(
        "huggingface", why or f"models of task: {model.recipe.task} are not compared"
    )


def _compared(
    model_folder: Path,
    exported: Path,
    model: Transducer,
    pairs: list[Pair],
    engine: str,
    quantize: str | None,
    data: str,
) -> Parity:
    items = items_of(pairs, model.recipe.data.multiple_references)
    sources = [item.source for item in items]
    with tempfile.TemporaryDirectory(dir=exported.parent) as scratch:  # where a kill leaves nothing
        before = measure_in_subprocess(model_folder, None, pairs, sources, Path(scratch))
        if engine == "huggingface":
            after = measure_in_subprocess(
                exported, str(model_folder), pairs, sources, Path(scratch), MEASURE_THERE
            )
        else:
            named = None if engine == "native" else engine
            after = measure_in_subprocess(exported, named, pairs, sources, Path(scratch))
    size = sum(file.stat().st_size for file in exported.iterdir() if file.suffix in HEAVY)
    return compare(
        before,
        after,
        items,
        list(model.recipe.metrics),
        bleu_tokenizer(model.recipe),
        engine=engine,
        quantize=quantize,
        own_search=engine in ("ctranslate2", "huggingface"),
        pairs=len(pairs),
        data=data,
        beam=parity_beam(model.recipe.decode),
        bytes=((model_folder / WEIGHTS).stat().st_size, size),
    )


def _check_place(place: Path, engine: str, overwrite: bool) -> None:
    """Raise ModelError if the folder holds anything but an older, unchanged export."""
    known = place / MARKS.get(engine, WEIGHTS)
    if place.is_dir() and any(place.iterdir()) and not known.is_file():
        raise ModelError(f"{place} holds files that are not an export; give another --output")
    if (place / WEIGHTS).is_file() and not (place / REPORT).is_file():
        raise ModelError(f"{place} holds a trained model; give another --output")
    for found in [] if overwrite or not place.is_dir() else strangers(place):
        raise ModelError(
            f"{found} was changed since the export and would be removed: move it, give another "
            f"--output, or --overwrite"
        )


def _pairs(
    model: Transducer, files: tuple[Path | None, Path | None], limit: int
) -> tuple[list[Pair], str]:
    """The first pairs that training would have used, and a name for them."""
    source, target = files
    data = model.recipe.data
    corpus: Corpus = data.valid
    name = "the recipe's validation set"
    if source is not None or target is not None:
        if source is None or target is None:
            raise DataError("pairs to compare on need both --source and --target")
        corpus = ParallelFiles(source=str(source.resolve()), target=str(target.resolve()))
        name = f"{source.name} and {target.name}"
    elif model.origin is not None:
        check_reads(*model.origin, data, corpus)
    try:
        found = list(islice(_short(model, corpus), limit))
    except DataError as error:
        raise DataError(f"{error} (give other pairs to compare on: --source, --target)") from None
    if not found:
        raise DataError(f"{name} has no pair of at most {data.max_length} tokens to compare on")
    return found, name


def _short(model: Transducer, corpus: Corpus) -> Iterator[Pair]:
    data = model.recipe.data
    for pair in read_pairs(corpus, data.folder):
        source = model.source_tokens.encode(pair.source)
        target = model.target_tokens.encode(pair.target)
        if 0 < len(source) <= data.max_length and len(target) <= data.max_length:
            yield pair
