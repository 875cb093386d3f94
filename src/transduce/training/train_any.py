"""`train`: a model from a recipe, or from data alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transduce.recipe import Recipe, recipe_file
from transduce.tasks.model import Change
from transduce.training.own_file.recipe import data_files
from transduce.training.own_file.train import is_own_run, train_file
from transduce.training.train import Trained, train_recipe


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path | Sequence[str | Path],
    folder: str | Path | None = None,
    *,
    minutes: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    overrides: Iterable[str] = (),
    change: Change | None = None,
    began: float | None = None,
) -> Trained:
    """Train a model from a recipe, or from data of your own.

        trained = transduce.train("my.yaml", overrides=["train.lr=3e-4"])
        trained = transduce.train("pairs.tsv", minutes=10)
        trained.model("A dog runs.")

    For data a recipe is chosen, as `transduce train pairs.tsv` does, and what was found, chosen and
    scored is printed. Under torchrun, all processes call this function and train one model
    together; this needs a recipe.

    Args:
        recipe: a Recipe, a dict with the keys of the YAML, a file or the name of a shipped recipe;
            or data: a table, a text, a folder, or a list of two parallel files.
        folder: where the run and the model are written; None: runs/NAME.
        minutes: minutes of training, in place of train.minutes. None: as in the recipe; of data,
            10.
        resume: continue from the checkpoint in the folder, if there is one; of data, with all that
            follows the first model. In place of data, its run directory may be given.
        overwrite: start over in a folder that holds a run.
        overrides: changes of the recipe, as on the command line.
        change: a function that is called with the network before its first update. It changes the
            network in place, or returns another transduce.models.TrainableNetwork. Resuming, and
            loading the model, need it again. Not with data.
        began: when the command began, by `time.monotonic`: train.minutes counts from there. None:
            now.

    Returns:
        The best model, its folder, and whether the run was interrupted. With data and enough time
        there are further runs in `ensemble`, if their models are better together with this one, or
        in `by_tag`, if each is better for the sources of its tag. The model decodes with them, as
        `transduce.load` of the folder does.

    Raises:
        TransduceError: with one sentence; the folder then still holds the last good checkpoint.
    """
    paths, rest = _data(recipe, overrides)
    place = recipe if isinstance(recipe, str | Path) and recipe_file(recipe) is not None else None
    if resume and folder is None and place is not None and is_own_run(place):
        return train_file([], place, minutes=minutes, resume=True, overrides=rest)
    if paths:
        return train_file(
            paths, folder, minutes=minutes, resume=resume, overwrite=overwrite, overrides=rest
        )
    rest += [] if minutes is None else [f"train.minutes={minutes}"]
    assert isinstance(recipe, Recipe | Mapping | str | Path)
    return train_recipe(
        recipe,
        folder,
        resume=resume,
        overwrite=overwrite,
        overrides=rest,
        change=change,
        began=began,
    )


def _data(given: object, overrides: Iterable[str]) -> tuple[list[Path], list[str]]:
    """The data files that are given, if they are no recipe, and the overrides."""
    if isinstance(given, str | Path):
        return data_files(given, overrides)
    if isinstance(given, Sequence):
        return [Path(one) for one in given], list(overrides)
    return [], list(overrides)
