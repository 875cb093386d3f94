"""What demos have in common: a run of their own, which goes on if it was stopped."""

from __future__ import annotations

from pathlib import Path

from transduce.cookbook import load_recipe
from transduce.errors import ModelError
from transduce.folder import holds_run
from transduce.recipe import Recipe
from transduce.training import train
from transduce.training.checkpoint import has_state
from transduce.training.loop import Trained


def train_anew(recipe: Recipe, folder: Path) -> Trained:
    """Go on with the same demo where it was stopped before it was scored; else start over."""
    written = folder / "recipe.yaml"
    if written.exists():
        name = load_recipe(written).name
        if name != recipe.name:
            raise ModelError(
                f"{folder} holds a run of another recipe, {name}, which the demo would overwrite; "
                "give it another --folder"
            )
    resume = has_state(folder) and not (folder / "metrics.json").exists()
    # Only a run may be overwritten: the demo was not asked to replace anything else.
    return train(recipe, folder, resume=resume, overwrite=not resume and holds_run(folder))
