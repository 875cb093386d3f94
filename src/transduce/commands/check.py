"""The command check: a recipe and its data examined."""

from __future__ import annotations

import typer

from transduce.commands.options import Overrides, RecipeArgument


def check(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Examine a recipe and its data before any training."""
    from transduce.console import print_diagnosis
    from transduce.cookbook import load_recipe
    from transduce.data.doctor import examine
    from transduce.hardware import pick_device
    from transduce.tasks.size import check_trainable
    from transduce.training.budget import free_memory
    from transduce.transducer import kind_of

    chosen = load_recipe(recipe, overrides or [])
    memory = free_memory(pick_device(chosen.train.device))
    if not chosen.train.shard:  # how many processes will share it is not known here
        check_trainable(kind_of(chosen), chosen, memory)
    diagnosis = examine(chosen)
    print_diagnosis(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)
