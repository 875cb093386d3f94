"""The command recipes: list the shipped recipes, or explain every key."""

from __future__ import annotations

from typing import Annotated

import typer


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Explain every key.")] = False,
) -> None:
    """List the shipped recipes, or print one to start your own from."""
    from transduce.cli.printing import print_keys, print_recipe, print_recipes

    if keys:
        print_keys()
    elif name is None:
        print_recipes()
    else:
        print_recipe(name)
