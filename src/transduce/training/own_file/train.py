"""`train_file`: from data alone to a trained model and its score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from transduce.evaluation.evaluate import evaluate_folder
from transduce.evaluation.results import Evaluation
from transduce.recipe import Recipe
from transduce.storage import make_folder, write_text
from transduce.tasks.folder import RECIPE, holds_run
from transduce.terminal import duration
from transduce.training.loop import Trained
from transduce.training.own_file.recipe import (
    CHOSEN,
    chosen_for,
    print_found,
    print_problems,
    recipe_of,
    recipe_text,
)
from transduce.training.own_file.time_left import has_time_left, minutes_of_ensemble, spend
from transduce.training.train import train_recipe


def print_scores(evaluation: Evaluation) -> None:
    for metric in evaluation.metrics.values():
        print(metric)


def train_file(
    paths: Sequence[Path],
    folder: str | Path | None = None,
    *,
    minutes: float | None = None,
    resume: bool = False,
    overwrite: bool = False,
    overrides: Iterable[str] = (),
    on_measured: Callable[[Evaluation], object] = print_scores,
) -> Trained:
    """Choose a recipe for data, train it, use the time that is left, and score it on the part that
    was held out; all of it is printed.

    on_measured: prints the score. Other arguments as of `transduce.train`.
    """
    found, choice, left = chosen_for(list(paths), list(overrides), minutes)
    recipe = recipe_of(found, choice, left)
    place = Path(folder) if folder is not None else Path("runs") / recipe.name
    if resume and holds_run(place):  # with the settings that it began with
        return train_recipe(place / RECIPE, place, resume=True, overrides=left)
    print_found(found, choice)
    if overwrite or not holds_run(place):
        print_problems(recipe, found)
        make_folder(place)
        write_text(place / CHOSEN, recipe_text(found, choice))
    # The minutes are of training: of a large file, reading alone may take longer.
    trained = train_recipe(recipe, place, resume=resume, overwrite=overwrite, count_reading=False)
    if trained.interrupted or not trained.first:
        return trained
    given = recipe.train.minutes or 0.0
    first = trained
    trained = spend(first, recipe, given, _print)
    print_score(recipe, trained, on_measured)
    _print("To try next:")
    for line in next_steps(recipe, first, given, place / CHOSEN):
        _print(line)
    _print(f"The recipe, with the reason of each value, is {place / CHOSEN}.")
    return trained


def _print(line: str) -> None:
    print(line, flush=True)


def print_score(
    recipe: Recipe, trained: Trained, on_measured: Callable[[Evaluation], object]
) -> None:
    """The score on the part that was held out, with its interval."""
    split = "test" if recipe.data.test is not None else "valid"
    about = "" if split == "test" else ", which also chose the checkpoint"
    count = len(trained.ensemble)
    models = f", ensemble of {count + 1} models" if count else ""
    _print(f"Held-out score ({split}{about}{models}):")
    evaluate_folder(
        trained.model,
        trained.folder,
        split=split,
        ensemble=[one.model for one in trained.ensemble],
        with_folders=[one.folder for one in trained.ensemble],
        on_measured=on_measured,
    )


def next_steps(recipe: Recipe, trained: Trained, minutes: float, chosen: Path) -> list[str]:
    """What may make it better, by how the run ended. chosen: the recipe as it was written."""
    state, steps = trained.state, recipe.train.steps
    found = []
    if state.step < steps:
        whole = duration(60 * minutes * steps / max(state.step, 1))
        found.append(
            f"  more time: --minutes {2 * minutes:g} (it made {state.step:,} of {steps:,} updates; "
            f"all take about {whole} here)"
        )
    elif state.best_step >= 0.9 * state.step:
        found.append(f"  longer: train.steps={2 * steps} (the best checkpoint was the last)")
    else:
        found.append(
            f"  less overfitting: more rows, or model.dropout="
            f"{min(recipe.model.dropout + 0.1, 0.5):.1g} (the best checkpoint was at update "
            f"{state.best_step:,} of {state.step:,})"
        )
    if state.step >= steps and recipe.task == "transduce" and not has_time_left(state, minutes):
        found.append(f"  an ensemble of seeds: --minutes {minutes_of_ensemble(state)}")
    found.append(f"  a search of the settings: transduce tune {chosen}")
    return found
