"""The command new: print the recipe for a file of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import Minutes

Data = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE [KEY=VALUE...]",
        help="A table, a text, two parallel files, or a folder; what you know of it, e.g. "
        "data.train.target=label; train.device=cuda for a GPU that is not here.",
    ),
]


def new(data: Data, minutes: Minutes = None) -> None:
    """Print a recipe for a file of your own, with its reasons."""
    from transduce.errors import DataError
    from transduce.recipe import recipe_file
    from transduce.terminal import say
    from transduce.training.own_file.recipe import chosen_for, data_files, recipe_of, recipe_text

    paths, overrides = data_files(data[0], data[1:])
    if not paths:
        path = Path(data[0])
        if recipe_file(data[0]) is None:
            what = f"{data[0]} is the recipe that comes with transduce"
            what += f" (./{data[0]} is what lies here)" if path.exists() else ""
        elif path.is_dir() and not any(path.iterdir()):
            what = f"{path} is an empty folder"
        elif path.exists():
            what = f"{data[0]} is a recipe or a run already"
        else:
            what = f"there is no file {data[0]}"
        raise DataError(f"{what}; give a file of data")
    found, choice, left = chosen_for(paths, overrides, minutes, elsewhere=True)
    recipe_of(found, choice, left)  # overrides are checked
    left = [override for override in left if not override.startswith("train.device=")]
    if left:
        raise DataError(
            f"{left[0]} belongs to training: write it into the recipe that this prints, or give it "
            f"to `transduce train`"
        )
    for warning in found.warnings:  # seen where the recipe goes into a file, too
        say(f"warning: {warning}")
    print(recipe_text(found, choice, Path.cwd()), end="")
