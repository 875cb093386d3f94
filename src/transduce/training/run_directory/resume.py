"""Resuming with a changed recipe: which keys may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transduce.errors import TrainingError
from transduce.recipe import Recipe, parse_recipe
from transduce.training.distributed.processes import Processes
from transduce.training.run_directory.checkpoint import saved_recipe

# Keys that may change without making the checkpoint meaningless.
FREE = (
    "name",
    "decode.",
    "validation.every",
    "validation.limit",
    "validation.beam",
    "validation.patience",
    "metrics",
    "data.folder",
    "data.test",
    "train.steps",
    "train.epochs",
    "train.minutes",
    "train.lr",
    "train.log_every",
    "train.log_to",
    "train.save_every",
    "train.checkpoint_activations",
    "train.device",
    "train.fsdp",
    "train.start.from",  # the checkpoint has its weights
)


def run_recipe(folder: Path, ranks: Processes) -> Recipe:
    """The recipe that the run in a folder was started with, as rank 0 reads it."""
    text = ranks.broadcast(saved_recipe(folder) if ranks.first else "")
    return parse_recipe(text, "the state's recipe", folder)


def check_changes(recipe: Recipe, folder: Path) -> list[str]:
    """One line for each key that differs from the run's own recipe.

    Raises TrainingError if one of them may not change when resuming.
    """
    before = parse_recipe(saved_recipe(folder), "the state's recipe", folder)
    changes = list(_differences(before.model_dump(mode="json"), recipe.model_dump(mode="json")))
    forbidden = [change for change in changes if not change[0].startswith(FREE)]
    if forbidden:
        key, old, new = forbidden[0]
        raise TrainingError(
            f"{folder} was trained with {key}: {old}, the recipe now says {new}; this cannot "
            f"change when resuming: set it back, or train into another folder (--output)"
        )
    return [f"{key} is now {new} (was {old})" for key, old, new in changes]


def _differences(old: Any, new: Any, prefix: str = "") -> list[tuple[str, Any, Any]]:
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [(prefix, old, new)]
    found = []
    for key in [*old, *(key for key in new if key not in old)]:
        dotted = f"{prefix}.{key}" if prefix else key
        found += _differences(old.get(key), new.get(key), dotted)
    return found
