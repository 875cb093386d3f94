"""A model folder (run directory): the recipe, the vocabularies, the metrics, names of its files.

transduce replaces only files that it wrote and that have not been edited: their checksums are in
model.sha256. All others are the user's and are kept: a recipe with comments, a README.md, an edited
file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from transduce.checksums import (
    SUMS,
    fits,
    is_ours,
    list_files,
    listed,
    read_sums,
    write_listed,
)
from transduce.data.tokens.tokenizer import Tokens
from transduce.errors import ModelError, RecipeError, TokensError, warn
from transduce.recipe import RECIPE, Recipe, dump_recipe, parse_recipe
from transduce.storage import locked, make_folder, read_tensor_metadata, write_json

WEIGHTS = "model.safetensors"
FORMAT = 1
"""The version of model folders, in the metadata of the weights as "transduce 1". Raise it only
where a folder written from now on cannot be used by the transduce of before."""
CARD = "README.md"
RUN_REPORT = "report.html"
METRICS = "metrics.json"
MEMBERS = "members.json"
"""The models within the folder that the model decodes with; see tasks/members.py."""
CARD_BESIDE = "MODEL_CARD.md"
"""The model card, where README.md is the user's."""
TOKENS = ("source.tokens.json", "target.tokens.json")
# The first line of a recipe that transduce wrote; a user's own recipe is in model.sha256 as well.
WRITTEN = "# Written by transduce: every key of the recipe that this model was trained with."
# Files that training and other commands write to a run directory; an export has a parity.json.
RUN_FILES = (
    RECIPE,
    WEIGHTS,
    "source.tokens.json",
    "target.tokens.json",
    "state",
    "log.jsonl",
    "tensorboard",
    METRICS,
    "import*",
    "*.hypotheses.txt",
    CARD,
    CARD_BESIDE,
    RUN_REPORT,
    MEMBERS,
    "attention.png",
    "training.png",
    SUMS,
)
EXPORTED = "*/parity.json"
EDITABLE = (
    RECIPE,
    CARD,
    CARD_BESIDE,
    RUN_REPORT,
    METRICS,
    "*.hypotheses.txt",
    "parity.json",
    "*.md",
)


class ModelDefinition(NamedTuple):
    """A model without its weights: the recipe and the two vocabularies."""

    recipe: Recipe
    source_tokens: Tokens
    target_tokens: Tokens


def write_definition(path: Path, definition: ModelDefinition) -> None:
    """Write each file atomically. Raises ModelError where the user's own recipe is in the way."""
    make_folder(path)
    if keeps_recipe(path, definition.recipe):
        if not is_ours(path / RECIPE):
            list_files(path, path / RECIPE)
    else:
        write_listed(path / RECIPE, f"{WRITTEN}\n{dump_recipe(definition.recipe)}")
    for name, tokens in zip(
        TOKENS, (definition.source_tokens, definition.target_tokens), strict=True
    ):
        write_listed(path / name, tokens.to_json())


def keeps_recipe(path: Path, recipe: Recipe) -> bool:
    """Whether a folder has the user's own recipe.yaml, equal to `recipe`, which is then kept.

    Raises ModelError where it differs: it is not replaced.
    """
    file = path / RECIPE
    if not file.exists():
        return False
    try:
        if _is_written(file):
            return False
        text = file.read_text("utf-8")
        same = parse_recipe(text, RECIPE, path) == parse_recipe(dump_recipe(recipe), RECIPE, path)
    except (OSError, UnicodeDecodeError, RecipeError):
        same = False
    if not same:
        raise ModelError(
            f"{file} is your own recipe, or was edited, and differs from the one to be trained; it "
            f"is not replaced: choose another --output, change that recipe, or move it away"
        )
    return True


def _is_written(file: Path) -> bool:
    """Whether transduce wrote a recipe.yaml and it has not been edited."""
    return is_ours(file) and file.read_bytes().startswith(WRITTEN.encode())


def read_definition(path: Path) -> ModelDefinition:
    """Read what `write_definition` wrote. Raises ModelError."""
    try:
        recipe = parse_recipe((path / RECIPE).read_text("utf-8"), RECIPE, path)
        source_tokens, target_tokens = _read_tokens(path)
    except UnicodeDecodeError:
        raise ModelError(
            f"{path / RECIPE} is damaged: it is not UTF-8 text; restore it from a copy"
        ) from None
    except (OSError, RecipeError, TokensError) as error:
        raise ModelError(f"the model folder {path} cannot be used: {error}") from None
    check_sums(path, *TOKENS)
    if not fits(path / RECIPE):
        warn(
            f"{path / RECIPE} was edited after training (its SHA-256 checksum is not the one in "
            f"{SUMS}); the model is used with the edited recipe"
        )
    return ModelDefinition(recipe, source_tokens, target_tokens)


def _read_tokens(path: Path) -> tuple[Tokens, Tokens]:
    """The vocabularies of source and target; one that both share is kept once."""
    source, target = (path / name for name in TOKENS)
    tokens = Tokens.load(source)
    shared = target.is_file() and source.read_bytes() == target.read_bytes()
    return tokens, tokens if shared else Tokens.load(target)


def format_metadata() -> dict[str, str]:
    """What the weights say of the format of their folder."""
    return {"format": f"transduce {FORMAT}"}


def check_format(path: Path) -> None:
    """Raise ModelError where a newer transduce wrote the folder, in a format of its own."""
    stated = str(read_tensor_metadata(path / WEIGHTS).get("format", f"transduce {FORMAT}"))
    version = stated.removeprefix("transduce ")
    if not version.isdecimal() or int(version) > FORMAT:
        raise ModelError(
            f"the model folder {path} has the format {stated[:40]!r}, and this transduce reads "
            f"formats up to 'transduce {FORMAT}': use the transduce that wrote it, or a newer one"
        )


def check_sums(path: Path, *names: str) -> None:
    """Raise ModelError for a file whose checksum differs from the one in model.sha256.

    Without names, all files are checked except those that the user may edit.
    """
    known = [name for name in read_sums(path) if not any(fnmatch(name, one) for one in EDITABLE)]
    for name in names or known:
        if not fits(path / name):
            raise ModelError(
                f"{path / name} is not the file that was saved with this model: its SHA-256 "
                f"checksum is not the one in {SUMS}; restore it from a copy"
            )


def holds_run(path: Path) -> bool:
    """Whether a folder holds a run or a model of transduce."""
    known = (SUMS, WEIGHTS, "state/training*.safetensors")
    return any(True for name in known for _ in path.glob(name))


def conflicting_file(path: Path) -> Path | None:
    """A file in a folder without a run that has the name of one that a run writes."""
    if holds_run(path):
        return None
    # Recipe, card and report have rules of their own: the user's are kept.
    names = [name for name in RUN_FILES if name not in (RECIPE, CARD, RUN_REPORT)]
    return next((found for name in names for found in sorted(path.glob(name))), None)


def discard_run(path: Path) -> None:
    """Remove a run from its folder; the user's own files are kept."""
    exports = [report.parent for report in path.glob(EXPORTED)]
    own = [path / name for name in (CARD, CARD_BESIDE, RUN_REPORT) if not is_ours(path / name)]
    own += [] if _is_written(path / RECIPE) else [path / RECIPE]
    for found in [*exports, *(found for name in RUN_FILES for found in path.glob(name))]:
        if found in own:
            continue
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink()


def is_foreign(path: Path) -> bool:
    """Whether a folder is one of Hugging Face."""
    return (path / "config.json").is_file() and not (path / RECIPE).is_file()


def missing_weights_message(path: Path) -> str:
    """The error message for a folder without weights."""
    if not path.exists():
        return f"there is no folder {path}; `transduce train` makes one under runs/"
    if is_foreign(path):
        return (
            f"{path} is a folder of Hugging Face, not of transduce: import it with `transduce "
            f"import {path} --output FOLDER`"
        )
    if (path / "parity.json").exists():  # as every export to another engine
        return (
            f"{path} is an export for another engine; run it with `transduce run {path}`, or from "
            f"Python with transduce.interop.engine.open_model({str(path)!r})"
        )
    if (path / RECIPE).exists() and not holds_run(path) and not (path / "state").exists():
        return (
            f"{path} has a recipe but no model; train it with `transduce train {path / RECIPE}` "
            f"and use the run directory that this makes under runs/"
        )
    if (path / RECIPE).exists():
        again = " --resume" if (path / "state").exists() else ""
        return (
            f"{path} has no {WEIGHTS}: its run was stopped before the first validation; resume it "
            f"with `transduce train {path}{again}`"
        )
    return f"{path} is not a model folder: it has no {WEIGHTS}"


def read_metrics(folder: Path) -> dict[str, Any]:
    """The metrics.json of a model folder, empty where there is none."""
    try:
        values = json.loads((folder / METRICS).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def entry_name(folder: Path, name: str, of: Mapping[str, Any]) -> str:
    """The key of metrics.json for results called `name`: the name, or NAME-2 where it is taken.

    `of` is what distinguishes results of one name, such as their files; an entry with the
    same values is replaced.
    """
    values = read_metrics(folder)
    tried = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(key for key in tried if key not in values or _holds(values[key], of))


def _holds(entry: Any, metadata: Mapping[str, Any]) -> bool:
    return isinstance(entry, dict) and all(entry.get(key) == metadata[key] for key in metadata)


def update_metrics(folder: Path, key: str, values: Any) -> None:
    """Put values into metrics.json under a key; other keys are kept, also those of a concurrent
    writer."""
    path = folder / METRICS
    with locked(path), listed(path) as announce:
        if path.is_file() and not fits(path):
            warn(f"{path} was edited since transduce wrote it; its values are kept")
        before = read_metrics(folder)
        if not before and path.is_file() and path.read_bytes().strip() not in (b"", b"{}"):
            aside = path.with_name("metrics.unreadable.json")
            path.replace(aside)
            warn(f"{path} was not a JSON object of metrics; it was renamed to {aside}")
        write_json(path, {**before, key: values}, announce)
