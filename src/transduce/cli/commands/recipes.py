"""The commands recipes and check: list shipped recipes, explain every key, validate a recipe."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from transduce.cli.commands.options import Overrides, RecipeArgument


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Explain every key.")] = False,
) -> None:
    """List the shipped recipes, or print one to start from."""
    from transduce.cli.printing import print_keys, print_recipe, print_recipes

    if keys:
        print_keys()
    elif name is None:
        print_recipes()
    else:
        print_recipe(name)


def check(recipe: RecipeArgument, overrides: Overrides = None) -> None:
    """Validate a recipe or a file, and inspect its data."""
    from transduce.cli.printing import print_diagnosis
    from transduce.data.doctor.check import examine
    from transduce.hardware import pick_device
    from transduce.memory import free_memory
    from transduce.recipe import load_recipe
    from transduce.tasks.model_size import check_trainable
    from transduce.tasks.transduce import kind_of
    from transduce.terminal import Waiting
    from transduce.training.own_file.recipe import (
        THOROUGHLY,
        chosen_for,
        data_files,
        first_pairs,
        pairs_of,
        print_found,
        recipe_of,
    )

    paths, rest = data_files(recipe, overrides or [])
    part = None
    if paths:
        found, choice, rest = chosen_for(paths, rest, None)
        print_found(found, choice)
        chosen = recipe_of(found, choice, rest)
        part = first_pairs(chosen, THOROUGHLY) if pairs_of(found) > THOROUGHLY else None
    else:
        chosen = load_recipe(recipe, rest)
    memory = free_memory(pick_device(chosen.train.device))
    if not chosen.train.fsdp:  # the number of processes is unknown here
        check_trainable(kind_of(chosen), chosen, memory)
    if part is not None:
        print(
            f"Checked are the first {THOROUGHLY:,} rows of each file. To check all of them:\n"
            f"  transduce new {' '.join(map(str, paths))} > my.yaml; transduce check my.yaml"
        )
        sys.stdout.flush()
    with Waiting() as waiting:
        diagnosis = examine(chosen if part is None else part, waiting.set)
    print_diagnosis(diagnosis)
    raise typer.Exit(0 if diagnosis.ok else 1)
