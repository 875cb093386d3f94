"""The command train: a recipe becomes a model, or a stopped run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from transduce.commands.options import Overrides, RecipeArgument


def train(
    recipe: RecipeArgument,
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option(help="Default: runs/NAME.")] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with a stopped run; start where none was saved."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Discard the run that is there.")
    ] = False,
) -> None:
    """Train a model. To go on with a stopped run: transduce train runs/NAME --resume."""
    from transduce.cookbook import load_recipe
    from transduce.folder import RECIPE, holds_run
    from transduce.training import train

    run = Path(recipe)
    if (run / RECIPE).is_file():
        # A folder that holds no run is somebody's own: its recipe is trained under runs/.
        recipe, folder = str(run / RECIPE), folder or (run if holds_run(run) else None)
    chosen = load_recipe(recipe, overrides or [])
    place = folder or Path("runs") / chosen.name
    trained = train(chosen, place, resume=resume, overwrite=overwrite)
    if not trained.first:
        raise typer.Exit(130 if trained.interrupted else 0)
    if trained.interrupted:
        print(f"Stopped at update {trained.standing.step:,}; everything is saved. Go on with:")
        print(f"  transduce train {place} --resume")
        raise typer.Exit(130)
    print(f"The model is in {place}. Try:")
    if chosen.data.test is not None:
        print(f"  transduce evaluate {place}")
    source = "recording.wav" if chosen.sound is not None else '"..."'
    print(f"  transduce run {place} {source}")
