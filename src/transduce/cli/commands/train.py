"""The command train: train a model from a recipe or from data, or resume a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transduce.cli.commands.options import Minutes, Overrides, RecipeArgument

if TYPE_CHECKING:
    from transduce.recipe import Recipe
    from transduce.training import Trained


def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "--out", help="The run directory. Default: runs/NAME."),
    ] = None,
    minutes: Minutes = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume from the last checkpoint; start anew where there is none."
        ),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the existing run.")
    ] = False,
) -> None:
    """Train a model from a recipe, or on a file of your own.

    For data a recipe is chosen and written; the score is of rows that are held out.

    To resume a stopped run: transduce train runs/NAME --resume.
    """
    began = time.monotonic()  # before torch is imported
    from transduce.cli.own_file import data_files

    paths, rest = data_files(recipe, overrides or [])
    if paths:
        _train_own(paths, rest, output, minutes, resume, overwrite, began)
    else:
        rest += [] if minutes is None else [f"train.minutes={minutes}"]
        _train_recipe(recipe, rest, output, resume, overwrite, began)


def _train_own(
    paths: list[Path],
    overrides: list[str],
    output: Path | None,
    minutes: float | None,
    resume: bool,
    overwrite: bool,
    began: float,
) -> None:
    """Choose a recipe for data, train it, and score it on the part that was held out."""
    from transduce.cli.own_file import (
        CHOSEN,
        chosen_for,
        next_steps,
        print_found,
        print_problems,
        print_score,
        recipe_of,
        recipe_text,
    )
    from transduce.storage import make_folder, write_text
    from transduce.tasks.folder import holds_run
    from transduce.training import train

    found, choice, left = chosen_for(paths, overrides, minutes)
    recipe = recipe_of(found, choice, left)
    place = output or Path("runs") / recipe.name
    if resume and holds_run(place):  # with the settings that it began with
        _train_recipe(str(place), left, None, True, False, began)
        return
    print_found(found, choice)
    if overwrite or not holds_run(place):
        print_problems(recipe, found)
        make_folder(place)
        write_text(place / CHOSEN, recipe_text(found, choice))
    # --minutes are of training: looking at the data does not count.
    trained = train(recipe, place, resume=resume, overwrite=overwrite)
    _check_finished(trained, place)
    print_score(recipe, trained)
    print("To try next:")
    for line in next_steps(recipe, trained, recipe.train.minutes or 0.0):
        print(line)
    print(f"The recipe, with the reason of each value, is {place / CHOSEN}.")
    _print_model(recipe, place)


def _train_recipe(
    recipe: str,
    overrides: list[str],
    output: Path | None,
    resume: bool,
    overwrite: bool,
    began: float,
) -> None:
    from transduce.recipe import load_recipe
    from transduce.tasks.folder import RECIPE, holds_run
    from transduce.training import train

    run = Path(recipe)
    if (run / RECIPE).is_file():
        # A folder without a run may hold other files: its recipe is trained under runs/.
        recipe, output = str(run / RECIPE), output or (run if holds_run(run) else None)
    chosen = load_recipe(recipe, overrides)
    place = output or Path("runs") / chosen.name
    trained = train(chosen, place, resume=resume, overwrite=overwrite, began=began)
    _check_finished(trained, place)
    _print_model(chosen, place, evaluated=False)


def _check_finished(trained: Trained, place: Path) -> None:
    """Leave, where the run was stopped, or another process says the rest."""
    if not trained.first:
        raise typer.Exit(130 if trained.interrupted else 0)
    if trained.interrupted:
        print(f"Stopped at update {trained.state.step:,}; a checkpoint is saved. Resume with:")
        print(f"  transduce train {place} --resume")
        raise typer.Exit(130)


def _print_model(recipe: Recipe, place: Path, evaluated: bool = True) -> None:
    print(f"The model is in {place}. Try:")
    if recipe.data.test is not None and not evaluated:
        print(f"  transduce evaluate {place}")
    source = "recording.wav" if recipe.audio is not None else '"..."'
    print(f"  transduce run {place} {source}")
