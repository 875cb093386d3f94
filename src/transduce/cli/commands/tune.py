"""The command tune: search for better values of a recipe's keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transduce.cli.commands.options import Overrides, RecipeArgument
from transduce.cores import count_cores

if TYPE_CHECKING:
    from transduce.recipe import Recipe
    from transduce.tuning.search import Limits
    from transduce.tuning.space import Space
    from transduce.tuning.study import Study


def tune(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials, at most.")] = 20,
    minutes: Annotated[
        float, typer.Option(min=0.05, help="Minutes for all trials and all commands together.")
    ] = 60.0,
    search: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="A key to search, with a range (train.lr=1e-4..1e-2) or values "
            "(model.dropout=0,0.1,0.3); repeatable. Default: those that usually matter.",
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Trials that are trained side by side.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--output", "--out", help="The folder. Default: runs/NAME-tune."),
    ] = None,
) -> None:
    """Search for better values of a recipe's keys.

    Trials are compared after 1/9 and 1/3 of their training; the best third goes on.

    The same command goes on after an interruption; in a second terminal it helps.
    """
    if jobs > 1:  # before torch is loaded
        os.environ.setdefault("OMP_NUM_THREADS", str(max(count_cores() // jobs, 1)))
    from transduce.cli.tuning import print_beginning, print_results, searched
    from transduce.tuning.sample import optuna

    optuna()  # or how to install it
    study = _study(recipe, overrides or [], trials, minutes, search or [], jobs, output)
    limits = _limits(study, trials, minutes, jobs)
    print_beginning(study, limits)
    try:
        seconds = searched(study, limits)
    except KeyboardInterrupt:
        print("Stopped; each trial has its checkpoint. The same command goes on.")
        raise typer.Exit(130) from None
    print_results(study, limits, seconds)


def _study(
    recipe: str,
    overrides: list[str],
    trials: int,
    minutes: float,
    search: list[str],
    jobs: int,
    output: Path | None,
) -> Study:
    """The search in the folder, begun now or earlier."""
    from transduce.training.own_file.recipe import (
        chosen_for,
        data_files,
        print_found,
        print_problems,
        recipe_of,
    )
    from transduce.tuning.rungs import SHARES, trainings
    from transduce.tuning.study import begin_study, open_study

    paths, rest = data_files(recipe, overrides)
    if not paths:
        chosen = _recipe(recipe, rest)
        place = output or _place(chosen)
        return begin_study(place, chosen, _space(chosen, search, rest), {})
    given = {"files": [str(path.resolve()) for path in paths], "overrides": sorted(rest)}
    limited = any(one.startswith("train.minutes=") for one in rest)
    each = max(minutes * jobs / trainings(trials, SHARES), 0.1)
    found, choice, left = chosen_for(paths, rest, None if limited else float(f"{each:.2g}"))
    chosen = recipe_of(found, choice, left)
    place = output or _place(chosen)
    there = open_study(place)
    if there is not None and there.given == given:
        # The choice depends on how fast this machine is at the moment: it is made once.
        chosen = there.recipe
    elif there is None:
        print_found(found, choice)
        print_problems(chosen, found)
    return begin_study(place, chosen, _space(chosen, search, left), given)


def _recipe(recipe: str, overrides: list[str]) -> Recipe:
    from transduce.recipe import load_recipe, recipe_file

    chosen = load_recipe(recipe, overrides)
    # The trials' recipes are in other folders than this one.
    start = (recipe_file(recipe) or Path(recipe)).resolve().parent
    plugins = [str(start / Path(plugin).expanduser()) for plugin in chosen.plugins]
    return chosen.model_copy(update={"plugins": plugins})


def _place(recipe: Recipe) -> Path:
    return Path("runs") / f"{recipe.name}-tune"


def _space(recipe: Recipe, search: list[str], overrides: list[str]) -> Space:
    from transduce.errors import RecipeError
    from transduce.tuning.space import named, usual

    fixed = [one.partition("=")[0].strip() for one in overrides]
    space = named(recipe, search, fixed) if search else usual(recipe, fixed)
    if not space:
        raise RecipeError("every key that would be searched is set; give others with --search")
    return space


def _limits(study: Study, trials: int, minutes: float, jobs: int) -> Limits:
    from transduce.tuning.search import Limits

    devices: tuple[str, ...] = ()
    if jobs > 1 and study.recipe.train.device in ("auto", "cuda"):
        import torch

        count = torch.cuda.device_count()
        devices = tuple(f"cuda:{number}" for number in range(count)) if count > 1 else ()
    return Limits(trials, minutes, jobs, devices)
