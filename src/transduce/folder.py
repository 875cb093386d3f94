"""A model folder on disk: the recipe, the tokens, the metrics, and the name of its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from transduce.cookbook import dump_recipe, parse_recipe
from transduce.data.tokens import Tokens
from transduce.errors import ModelError, RecipeError, TokensError
from transduce.recipe import Recipe
from transduce.storage import make_folder, write_text

WEIGHTS = "model.safetensors"
# What a run, and commands that are given its folder, write there. An export has a report in it.
OF_A_RUN = (
    "recipe.yaml",
    WEIGHTS,
    "source.tokens.json",
    "target.tokens.json",
    "state",
    "log.jsonl",
    "tensorboard",
    "metrics.json",
    "*.hypotheses.txt",
    "README.md",
    "attention.png",
    "training.png",
)
EXPORTED = "*/parity.json"


class Frame(NamedTuple):
    """All of a model but its weights."""

    recipe: Recipe
    source_tokens: Tokens
    target_tokens: Tokens


def write_frame(path: Path, frame: Frame) -> None:
    """Each file whole or not at all."""
    make_folder(path)
    write_text(path / "recipe.yaml", dump_recipe(frame.recipe))
    frame.source_tokens.save(path / "source.tokens.json")
    frame.target_tokens.save(path / "target.tokens.json")


def read_frame(path: Path) -> Frame:
    """What `write_frame` wrote: all of a model folder but the weights. Raises ModelError."""
    try:
        recipe = parse_recipe((path / "recipe.yaml").read_text("utf-8"), "recipe.yaml", path)
        source_tokens = Tokens.load(path / "source.tokens.json")
        target_tokens = Tokens.load(path / "target.tokens.json")
    except UnicodeDecodeError:
        raise ModelError(
            f"{path / 'recipe.yaml'} is damaged: it is not UTF-8 text; restore it from a copy"
        ) from None
    except (OSError, RecipeError, TokensError) as error:
        raise ModelError(f"the model folder {path} cannot be used: {error}") from None
    return Frame(recipe, source_tokens, target_tokens)


def discard_run(path: Path) -> None:
    """Remove a run from its folder; what else is there is somebody's own, and stays."""
    exports = [report.parent for report in path.glob(EXPORTED)]
    for found in [*exports, *(found for name in OF_A_RUN for found in path.glob(name))]:
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink()


def why_no_weights(path: Path) -> str:
    """What to say of a folder without weights."""
    if not path.exists():
        return f"there is no folder {path}; `transduce train` makes one under runs/"
    if (path / "recipe.yaml").exists():
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
