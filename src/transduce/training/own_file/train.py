"""`train_file`: from data alone to a trained model and its score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from transduce.evaluation.evaluate import evaluate_folder
from transduce.evaluation.results import Evaluation
from transduce.recipe import RECIPE, Recipe, load_recipe
from transduce.storage import make_folder, write_text
from transduce.tasks.folder import METRICS, holds_run
from transduce.terminal import Waiting, duration
from transduce.training.loop import Trained
from transduce.training.own_file.plan import (
    has_time_left,
    minutes_of_ensemble,
    minutes_of_tags,
    runs_left,
    uses_of,
)
from transduce.training.own_file.recipe import (
    CHOSEN,
    chosen_for,
    print_found,
    print_problems,
    recipe_of,
    recipe_text,
)
from transduce.training.own_file.tags import shares_of_tags
from transduce.training.own_file.time_left import (
    discard_further,
    is_flawless,
    read_compared,
    spend,
    steps_of,
    write_compared,
)
from transduce.training.train import finished_run, train_recipe

MANY = 300_000  # rows whose reading takes longer than a person waits without a word


def print_scores(evaluation: Evaluation) -> None:
    for metric in evaluation.metrics.values():
        print(metric)


def is_own_run(folder: str | Path) -> bool:
    """Whether `train_file` began the run in a folder, so that it can go on with all of it."""
    place = Path(folder)
    return (place / CHOSEN).is_file() and (place / RECIPE).is_file() and holds_run(place)


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

    on_measured: prints the score. resume: go on where a run in the folder was stopped, be it in the
    first model or after it; then there may be no paths. Other arguments as of `transduce.train`.
    """
    if resume and folder is not None and is_own_run(folder):
        return _continue(Path(folder), list(overrides), minutes, on_measured)
    found, choice, left = chosen_for(list(paths), list(overrides), minutes)
    recipe = recipe_of(found, choice, left)
    place = Path(folder) if folder is not None else Path("runs") / recipe.name
    if resume and is_own_run(place):
        return _continue(place, left, minutes, on_measured)
    print_found(found, choice)
    if overwrite or not holds_run(place):
        print_problems(recipe, found)
        make_folder(place)
        write_text(place / CHOSEN, recipe_text(found, choice))
    if overwrite:
        discard_further(place)
    if found.rows >= MANY and found.task != "language model":  # whose rows are its letters
        _print("Reading so many rows takes a while; it does not count towards the minutes.")
    # The minutes are of training: of a large file, reading alone may take longer.
    first = train_recipe(recipe, place, resume=resume, overwrite=overwrite, count_reading=False)
    return _after_first(first, recipe, on_measured, resume=False)


def _continue(
    place: Path,
    overrides: list[str],
    minutes: float | None,
    on_measured: Callable[[Evaluation], object],
) -> Trained:
    """Go on with the run in a folder, by the recipe that it began with."""
    changed = [*overrides, *([] if minutes is None else [f"train.minutes={minutes}"])]
    began, recipe = load_recipe(place / RECIPE), load_recipe(place / RECIPE, changed)
    # Other changes than of the time are for the run itself to judge.
    same = _without_minutes(recipe) == _without_minutes(began)
    first = finished_run(place, recipe) if same else None
    if first is None:
        first = train_recipe(recipe, place, resume=True, count_reading=False)
    else:
        _print(f"The first model is finished, at update {first.state.step:,}.")
        if recipe != began:  # the next command has these minutes too
            first.model.recipe = recipe
            first.model.save_definition(place)
    return _after_first(first, recipe, on_measured, resume=True)


def _without_minutes(recipe: Recipe) -> Recipe:
    train = recipe.train.model_copy(update={"minutes": None})
    return recipe.model_copy(update={"train": train})


def _after_first(
    first: Trained, recipe: Recipe, on_measured: Callable[[Evaluation], object], resume: bool
) -> Trained:
    """What follows the first model: the time that is left, and the score."""
    if first.interrupted or not first.first:
        return first
    place, minutes = first.folder, recipe.train.minutes or 0.0
    trained = spend(first, recipe, minutes, _print, resume)
    if trained.interrupted:
        return trained
    scored = steps_of([trained, *trained.ensemble, *trained.by_tag.values()], place)
    if resume and read_compared(place).get("scored") == scored:
        _print(f"It was scored before: see {trained.folder / METRICS}.")
    else:
        print_score(recipe, trained, on_measured)
        write_compared(place, {**read_compared(place), "scored": scored})
    _print("To try next:")
    for line in next_steps(recipe, first, minutes, place / CHOSEN):
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
    models += ", a model for each tag" if trained.by_tag else ""
    _print(f"Held-out score ({split}{about}{models}{_other_search(trained.model.recipe)}):")
    with Waiting() as waiting:
        waiting.set("the held-out part is decoded and scored")
        evaluate_folder(trained.model, trained.folder, split=split, on_measured=on_measured)


def _other_search(recipe: Recipe) -> str:
    """How outputs are decoded, where validation did so in another way: scores differ by it."""
    beams = (recipe.decode.beam, recipe.validation.beam)
    if recipe.task != "transduce" or beams[0] == beams[1]:
        return ""
    now, then = ("greedy search" if beam == 1 else f"beam {beam}" for beam in beams)
    return f"; decoded with {now}, in validation with {then}"


def next_steps(recipe: Recipe, trained: Trained, minutes: float, chosen: Path) -> list[str]:
    """What may make it better, by how the run ended. chosen: the recipe as it was written."""
    from transduce.automatic.choose import MINUTES

    state, steps = trained.state, recipe.train.steps
    if is_flawless(trained):
        return ["  rows of another kind: everything in the validation set is right"]
    found = []
    if state.step < steps:
        whole = minutes * steps / max(state.step, 1)
        more = max(2 * minutes, min(math.ceil(whole), MINUTES))
        found.append(
            f"  more time: --minutes {more:g} (it made {state.step:,} of {steps:,} updates; "
            f"all take about {duration(60 * whole)} here)"
        )
    elif recipe.data.test is None and "%" in str(getattr(recipe.data.valid, "split", "")):
        found.append("  more rows: of so few held out, which checkpoint is best is mostly chance")
    elif state.best_step >= 0.9 * state.step:
        found.append(f"  longer: train.steps={2 * steps} (the best checkpoint was the last)")
    else:
        found.append(
            f"  less overfitting: more rows, or model.dropout="
            f"{min(recipe.model.dropout + 0.1, 0.5):.1g} (the best checkpoint was at update "
            f"{state.best_step:,} of {state.step:,})"
        )
    if state.step >= steps and recipe.task == "transduce" and not has_time_left(state, minutes):
        shares = shares_of_tags(recipe).values()
        if shares and not uses_of(runs_left(state, minutes), False, shares).by_tag:
            needed = minutes_of_tags(state, shares)
            found.append(f"  a model for each tag, if it is better: --minutes {needed}")
        found.append(f"  an ensemble of seeds: --minutes {minutes_of_ensemble(state)}")
    found.append(f"  a search of the settings: transduce tune {chosen}")
    return found
