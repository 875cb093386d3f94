"""The command train: train a model from a recipe, or resume a run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.commands.options import Overrides, RecipeArgument


def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    output: Annotated[
        Path | None, typer.Option(help="The run directory. Default: runs/NAME.")
    ] = None,
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
    """Train a model. To resume a stopped run: transduce train runs/NAME --resume."""
    began = time.monotonic()  # before torch is imported
    from transduce.recipe import load_recipe
    from transduce.tasks.folder import RECIPE, holds_run
    from transduce.training import train

    run = Path(recipe)
    if (run / RECIPE).is_file():
        # A folder without a run may hold other files: its recipe is trained under runs/.
        recipe, output = str(run / RECIPE), output or (run if holds_run(run) else None)
    chosen = load_recipe(recipe, overrides or [])
    place = output or Path("runs") / chosen.name
    trained = train(chosen, place, resume=resume, overwrite=overwrite, began=began)
    if not trained.first:
        raise typer.Exit(130 if trained.interrupted else 0)
    if trained.interrupted:
        print(f"Stopped at update {trained.state.step:,}; a checkpoint is saved. Resume with:")
        print(f"  transduce train {place} --resume")
        raise typer.Exit(130)
    print(f"The model is in {place}. Try:")
    if chosen.data.test is not None:
        print(f"  transduce evaluate {place}")
    source = "recording.wav" if chosen.audio is not None else '"..."'
    print(f"  transduce run {place} {source}")
