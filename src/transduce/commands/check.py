"""The command check: a recipe and its data examined."""

from __future__ import annotations

import typer

from transduce.commands.options import Overrides, RecipeArgument


def check(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Examine a recipe and its data before any training."""
    from transduce.console import print_diagnosis
    from transduce.cookbook import load_recipe
    from transduce.data.doctor import examine

    diagnosis = examine(load_recipe(recipe, overrides or []))
    print_diagnosis(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)
