"""The command train: train a model from a recipe or from data, or resume a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from transduce.cli.commands.options import Minutes, Overrides, RecipeArgument
from transduce.garbage import no_garbage_collection

if TYPE_CHECKING:
    from transduce.recipe import Recipe
    from transduce.training import Trained

ENGINES = ("local", "ray")


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
    engine: Annotated[
        str,
        typer.Option(
            help="local: this process, or those that torchrun or srun started; ray: workers of a "
            "Ray cluster."
        ),
    ] = "local",
    workers: Annotated[
        int,
        typer.Option(
            min=0, help="Workers of --engine ray. Default: one for each GPU, or each machine."
        ),
    ] = 0,
) -> None:
    """Train a model from a recipe, or on a file of your own.

    For data a recipe is chosen and written; the score is of rows that are held out.

    To resume a stopped run: transduce train runs/NAME --resume.
    """
    began = time.monotonic()  # before torch is imported
    from transduce.errors import TrainingError
    from transduce.training.own_file.recipe import data_files

    if engine not in ENGINES:
        raise TrainingError(f"there is no engine {engine}; there are {' and '.join(ENGINES)}")
    if workers and engine != "ray":
        raise TrainingError(
            "--workers is for --engine ray; several processes of this machine are started by "
            "torchrun --nproc-per-node N -m transduce train ..."
        )
    paths, rest = data_files(recipe, overrides or [])
    if engine == "ray" and (paths or _is_own_run(recipe)):
        raise TrainingError(
            f"--engine ray trains a recipe, and {recipe} is data: write one with transduce new"
        )
    if not paths and resume and output is None and _is_own_run(recipe):
        _train_own([], rest, Path(recipe), minutes, resume, overwrite)
    elif paths:
        _train_own(paths, rest, output, minutes, resume, overwrite)
    else:
        rest += [] if minutes is None else [f"train.minutes={minutes}"]
        _train_recipe(recipe, rest, output, resume, overwrite, began, engine, workers)


def _is_own_run(place: str) -> bool:
    """Whether a folder has a run that data in place of a recipe began."""
    from transduce.recipe import recipe_file

    if recipe_file(place) is None or not Path(place).is_dir():
        return False
    from transduce.training.own_file.train import is_own_run

    return is_own_run(place)


def _train_own(
    paths: list[Path],
    overrides: list[str],
    output: Path | None,
    minutes: float | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Choose a recipe for data, train it, and score it on the part that was held out."""
    from transduce.cli.printing import print_metrics
    from transduce.training.own_file.train import train_file

    trained = train_file(
        paths,
        output,
        minutes=minutes,
        resume=resume,
        overwrite=overwrite,
        overrides=overrides,
        on_measured=print_metrics,
    )
    _check_finished(trained, trained.folder)
    _print_model(trained, evaluated=True)


def _train_recipe(
    recipe: str,
    overrides: list[str],
    output: Path | None,
    resume: bool,
    overwrite: bool,
    began: float,
    engine: str,
    workers: int,
) -> None:
    with no_garbage_collection():
        from transduce.recipe import load_recipe, recipe_file
        from transduce.tasks.folder import holds_run
        from transduce.training.train import train_recipe

    chosen = load_recipe(recipe, overrides)
    # A folder without a run may hold other files: its recipe is trained under runs/.
    if output is None and recipe_file(recipe) is not None and holds_run(Path(recipe)):
        output = Path(recipe)
    place = output or Path("runs") / chosen.name
    if engine == "ray":
        from transduce.training.distributed.ray_train import train_on_ray

        train_on_ray(chosen, place, workers, resume=resume, overwrite=overwrite)
        _print_commands(place, chosen, evaluated=False)
        return
    trained = train_recipe(chosen, place, resume=resume, overwrite=overwrite, began=began)
    _check_finished(trained, place)
    _print_model(trained, evaluated=False)


def _check_finished(trained: Trained, place: Path) -> None:
    """Leave, where the run was stopped, or another process says the rest."""
    if not trained.first:
        raise typer.Exit(130 if trained.interrupted else 0)
    if trained.interrupted:
        print(f"Stopped at update {trained.state.step:,}; a checkpoint is saved. Resume with:")
        print(f"  transduce train {place} --resume")
        raise typer.Exit(130)


def _print_commands(place: Path, recipe: Recipe, evaluated: bool, tag: str | None = None) -> None:
    from transduce.cli.try_model import run_command

    print(f"The model is in {place}. Try:")
    if recipe.data.test is not None and not evaluated:
        print(f"  transduce evaluate {place}")
    print(f"  {run_command(place, recipe, tag)}")


def _print_model(trained: Trained, evaluated: bool) -> None:
    tag = next(iter(trained.by_tag), None)
    _print_commands(trained.folder, trained.model.recipe, evaluated, tag)
    if trained.ensemble:
        count = 1 + len(trained.ensemble)
        print(f"It is an ensemble of {count} models; --ensemble none uses the first alone, and is")
        print(f"about {count} times as fast.")
