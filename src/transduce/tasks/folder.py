"""A model folder on disk: the recipe, the tokens, the metrics, and the name of its weights.

Files in it are ours or a person's. Ours are as model.sha256 lists them, and may be replaced. A
person's are all others: a recipe with comments, a README.md, one of ours that was edited. They
stay.
"""

from __future__ import annotations

import json
import shutil
import warnings
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
from transduce.errors import ModelError, RecipeError, TokensError, TransduceWarning
from transduce.recipe import Recipe, dump_recipe, parse_recipe
from transduce.storage import locked, make_folder, read_tensor_facts, write_json

WEIGHTS = "model.safetensors"
FORMAT = 1
"""The version of model folders, in the facts of the weights as "transduce 1". Raise it only where a
folder written from now on cannot be used by the transduce of before."""
RECIPE = "recipe.yaml"
CARD = "README.md"
CARD_BESIDE = "MODEL_CARD.md"
"""Has the card where README.md is a person's."""
TOKENS = ("source.tokens.json", "target.tokens.json")
# The first line of a recipe that we wrote, as one that was there before is listed as well.
WRITTEN = "# Written by transduce: every key of the recipe that this model was trained with."
# What a run, and commands that are given its folder, write there. An export has a report in it.
OF_A_RUN = (
    RECIPE,
    WEIGHTS,
    "source.tokens.json",
    "target.tokens.json",
    "state",
    "log.jsonl",
    "tensorboard",
    "metrics.json",
    "*.hypotheses.txt",
    CARD,
    CARD_BESIDE,
    "attention.png",
    "training.png",
    SUMS,
)
EXPORTED = "*/parity.json"
EDITABLE = (RECIPE, CARD, CARD_BESIDE, "metrics.json", "*.hypotheses.txt", "parity.json", "*.md")


class Frame(NamedTuple):
    """All of a model but its weights."""

    recipe: Recipe
    source_tokens: Tokens
    target_tokens: Tokens


def write_frame(path: Path, frame: Frame) -> None:
    """Each file whole or not at all. Raises ModelError where a person's recipe is in the way."""
    make_folder(path)
    if keeps_recipe(path, frame.recipe):
        if not is_ours(path / RECIPE):
            list_files(path, path / RECIPE)
    else:
        write_listed(path / RECIPE, f"{WRITTEN}\n{dump_recipe(frame.recipe)}")
    for name, tokens in zip(TOKENS, (frame.source_tokens, frame.target_tokens), strict=True):
        write_listed(path / name, tokens.to_json())


def keeps_recipe(path: Path, recipe: Recipe) -> bool:
    """Whether a folder has a recipe.yaml that stays: a person's own, which says the same.

    Raises ModelError where it says something else: it is not replaced.
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
            f"{file} is a recipe of your own, or was edited, and says something else than the one "
            f"to be trained; it is not replaced: choose another --output, change the recipe "
            f"itself, or move it away"
        )
    return True


def _is_written(file: Path) -> bool:
    """Whether a recipe.yaml is one that we wrote, and nobody has changed."""
    return is_ours(file) and file.read_bytes().startswith(WRITTEN.encode())


def read_frame(path: Path) -> Frame:
    """What `write_frame` wrote: all of a model folder but the weights. Raises ModelError."""
    try:
        recipe = parse_recipe((path / RECIPE).read_text("utf-8"), RECIPE, path)
        source_tokens, target_tokens = (Tokens.load(path / name) for name in TOKENS)
    except UnicodeDecodeError:
        raise ModelError(
            f"{path / RECIPE} is damaged: it is not UTF-8 text; restore it from a copy"
        ) from None
    except (OSError, RecipeError, TokensError) as error:
        raise ModelError(f"the model folder {path} cannot be used: {error}") from None
    check_sums(path, *TOKENS)
    if not fits(path / RECIPE):
        _warn(
            f"{path / RECIPE} was changed after the model was trained (its SHA-256 sum is not the "
            f"one in {SUMS}): the model is used as the recipe says now"
        )
    return Frame(recipe, source_tokens, target_tokens)


def format_fact() -> dict[str, str]:
    """What the weights say of the format of their folder."""
    return {"format": f"transduce {FORMAT}"}


def check_format(path: Path) -> None:
    """Raise ModelError where a newer transduce wrote the folder, in a format of its own."""
    told = str(read_tensor_facts(path / WEIGHTS).get("format", f"transduce {FORMAT}"))
    version = told.removeprefix("transduce ")
    if not version.isdecimal() or int(version) > FORMAT:
        raise ModelError(
            f"the model folder {path} has the format {told[:40]!r}, and this transduce reads "
            f"formats up to 'transduce {FORMAT}': use the transduce that wrote it, or a newer one"
        )


def check_sums(path: Path, *names: str) -> None:
    """Raise ModelError for a file that is not the one that was written with the model.

    Without names, all are checked but those that a person may edit.
    """
    known = [name for name in read_sums(path) if not any(fnmatch(name, one) for one in EDITABLE)]
    for name in names or known:
        if not fits(path / name):
            raise ModelError(
                f"{path / name} is not the file that was written with this model: its SHA-256 sum "
                f"is not the one in {SUMS}; restore it from a copy"
            )


def holds_run(path: Path) -> bool:
    """Whether transduce has begun a run, or put a model, in a folder."""
    known = (SUMS, WEIGHTS, "state/training*.safetensors")
    return any(True for name in known for _ in path.glob(name))


def in_the_way(path: Path) -> Path | None:
    """Something in a folder without a run that has the name of a file which a run writes."""
    if holds_run(path):
        return None
    # These two have rules of their own: they stay.
    names = [name for name in OF_A_RUN if name not in (RECIPE, CARD)]
    return next((found for name in names for found in sorted(path.glob(name))), None)


def discard_run(path: Path) -> None:
    """Remove a run from its folder; what else is there is somebody's own, and stays."""
    exports = [report.parent for report in path.glob(EXPORTED)]
    own = [path / name for name in (CARD, CARD_BESIDE) if not is_ours(path / name)]
    own += [] if _is_written(path / RECIPE) else [path / RECIPE]
    for found in [*exports, *(found for name in OF_A_RUN for found in path.glob(name))]:
        if found in own:
            continue
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink()


def why_no_weights(path: Path) -> str:
    """What to say of a folder without weights."""
    if not path.exists():
        return f"there is no folder {path}; `transduce train` makes one under runs/"
    if (path / RECIPE).exists() and not holds_run(path) and not (path / "state").exists():
        return (
            f"{path} holds a recipe and no model; train it with `transduce train "
            f"{path / RECIPE}`, and use the folder under runs/ that this makes"
        )
    if (path / RECIPE).exists():
        again = " --resume" if (path / "state").exists() else ""
        return (
            f"{path} has no {WEIGHTS}: its run was stopped before the first validation; go on "
            f"with `transduce train {path}{again}`"
        )
    return f"{path} is not a model folder: it has no {WEIGHTS}"


def read_metrics(folder: Path) -> dict[str, Any]:
    """The metrics.json of a model folder, empty where there is none."""
    try:
        values = json.loads((folder / "metrics.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def entry_name(folder: Path, name: str, of: Mapping[str, Any]) -> str:
    """The key of metrics.json for results called `name`: the name, or NAME-2 where it is taken.

    `of` are the facts that tell results of one name apart, such as their files; what has been
    measured of the same before is measured anew.
    """
    values = read_metrics(folder)
    tried = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(key for key in tried if key not in values or _holds(values[key], of))


def _holds(entry: Any, facts: Mapping[str, Any]) -> bool:
    return isinstance(entry, dict) and all(entry.get(key) == facts[key] for key in facts)


def update_metrics(folder: Path, key: str, values: Any) -> None:
    """Put values into metrics.json under a key; another writer's keys are kept, also one that
    writes at the same time."""
    path = folder / "metrics.json"
    with locked(path), listed(path) as announce:
        if path.is_file() and not fits(path):
            _warn(f"{path} was changed since transduce wrote it; what it holds is kept")
        before = read_metrics(folder)
        if not before and path.is_file() and path.read_bytes().strip() not in (b"", b"{}"):
            aside = path.with_name("metrics.unreadable.json")
            path.replace(aside)
            _warn(f"{path} was not a JSON object of metrics; it is now {aside}")
        write_json(path, {**before, key: values}, announce)


def _warn(sentence: str) -> None:
    warnings.warn(sentence, TransduceWarning, stacklevel=3)
