"""Training of the demos: a run directory of their own, resumed if it was stopped."""

from __future__ import annotations

from pathlib import Path

from transduce.errors import ModelError
from transduce.recipe import Recipe, load_recipe
from transduce.tasks.folder import holds_run
from transduce.training import train
from transduce.training.loop import Trained
from transduce.training.run_directory.checkpoint import has_state


def train_anew(recipe: Recipe, folder: Path) -> Trained:
    """Resume the same demo where it was stopped before its evaluation; else start over."""
    written = folder / "recipe.yaml"
    if written.exists():
        name = load_recipe(written).name
        if name != recipe.name:
            raise ModelError(
                f"{folder} holds a run of another recipe, {name}, which the demo would overwrite; "
                "give it another --output"
            )
    resume = has_state(folder) and not (folder / "metrics.json").exists()
    # Only a run may be overwritten: the demo was not asked to replace anything else.
    return train(recipe, folder, resume=resume, overwrite=not resume and holds_run(folder))
