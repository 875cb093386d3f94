"""Time that is left once a recipe has had all its updates: further seeds, together an ensemble, and
one model that learns from all of them (distillation).

What each brought is measured on the validation set and shown; what is not better is not used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transduce.data.text.pairs import read_pairs
from transduce.errors import TransduceError
from transduce.evaluation.bootstrap import Difference, paired_difference
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import Item, items_of, measurable
from transduce.evaluation.metrics import Measured
from transduce.recipe import Recipe
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.transduce import Model
from transduce.terminal import duration
from transduce.training.loop import Trained
from transduce.training.prepare import Print
from transduce.training.run_directory.best_model import is_better
from transduce.training.run_directory.checkpoint import TrainingState
from transduce.training.train import train_recipe

MAX_MODELS = 5  # models: decoding takes as many times as long, and more bring little
DISTILLED_FROM = 4.0  # runs that there is time for: two of further seeds, two of distillation
DISTILLATION = 2.0  # runs that it takes: each update asks all teachers
TEACHER_WEIGHT = 0.5
MAX_ROWS = 500  # of the validation set, by which all are compared


@dataclass(frozen=True)
class Rival:
    """What the time brought: one model, or several together."""

    name: str
    trained: Trained
    ensemble: tuple[Trained, ...]
    measured: Measured

    @property
    def value(self) -> float:
        return float(self.measured.score(self.measured.statistics.sum(axis=0)))


def can_teach(recipe: Recipe) -> bool:
    """Whether models of a recipe can be distilled into one (train.teacher)."""
    return recipe.audio is None and not recipe.model.copies


def uses_of(runs: float, distills: bool) -> tuple[int, bool]:
    """How many further seeds are trained, and whether one is distilled from them, in the time of so
    many runs. distills: whether that is possible."""
    if distills and runs >= DISTILLED_FROM:
        return min(MAX_MODELS - 1, int(runs - DISTILLATION)), True
    return min(MAX_MODELS - 1, int(runs)), False


def runs_left(state: TrainingState, minutes: float) -> float:
    """Of how many runs as that one there is time left."""
    return (60 * minutes - state.elapsed) / max(state.elapsed, 1.0)


def has_time_left(state: TrainingState, minutes: float) -> bool:
    return runs_left(state, minutes) >= 1


def minutes_of_ensemble(state: TrainingState) -> int:
    """Minutes in which three seeds are trained, each as that one."""
    return math.ceil(3.2 * state.elapsed / 60)


def spend(trained: Trained, recipe: Recipe, minutes: float, print_line: Print) -> Trained:
    """Use what is left of the minutes; returns what is best on the validation set.

    trained: the first model. Models of labels, of tags and of running text have no ensembles, and
    stay as they are.
    """
    state, model = trained.state, trained.model
    if recipe.task != "transduce" or not isinstance(model, GenerativeModel):
        return trained
    left = 60 * minutes - state.elapsed
    seeds, distilled = uses_of(runs_left(state, minutes), can_teach(recipe))
    if state.step < recipe.train.steps or not seeds:
        return trained
    print_line(
        f"All updates are done, and {duration(left)} are left: {seeds} more "
        f"{'seed' if seeds == 1 else 'seeds'} for an ensemble"
        f"{', then one model that learns from it' if distilled else ''}."
    )
    runs = [trained]
    for number in range(2, seeds + 2):
        print_line(f"Seed {recipe.seed + number - 1}:")
        more = _again(recipe, model.recipe, number, left / 60)
        one = train_recipe(
            more, trained.folder / f"seed-{number}", overwrite=True, count_reading=False
        )
        if one.interrupted:
            break
        runs.append(one)
        left -= one.state.elapsed
    if len(runs) == 1:
        return trained
    items = _items(recipe, model)
    metric = recipe.metrics[0] if recipe.validation.metric == "loss" else recipe.validation.metric
    singles = [_measured(f"seed {n}", one, (), items, metric) for n, one in enumerate(runs, 1)]
    others = tuple(runs[1:])
    together = _measured(f"ensemble of {len(runs)}", trained, others, items, metric)
    rivals = [singles[0], together]
    if distilled and left > state.elapsed:
        student = _distilled(recipe, runs, left / 60, print_line)
        if student is not None:
            rivals.append(_measured("distilled into one", student, (), items, metric))
    best = best_of(rivals, singles, metric)
    for line in report(rivals, singles, metric, len(items), best):
        print_line(line)
    return replace(best.trained, ensemble=best.ensemble)


def _again(recipe: Recipe, first: Recipe, seed: int, minutes: float) -> Recipe:
    """The recipe for another seed, with the decoding settings that were chosen for the first."""
    validation = recipe.validation.model_copy(update={"decoding": "fixed"})
    train = recipe.train.model_copy(update={"minutes": minutes})
    changes: dict[str, Any] = {"seed": recipe.seed + seed - 1, "decode": first.decode}
    return recipe.model_copy(update={**changes, "train": train, "validation": validation})


def _distilled(
    recipe: Recipe, runs: Sequence[Trained], minutes: float, print_line: Print
) -> Trained | None:
    """One model that learns from all; None, with a sentence, where the network cannot."""
    teacher = {"model": [str(one.folder) for one in runs], "weight": TEACHER_WEIGHT}
    again = _again(recipe, runs[0].model.recipe, len(runs) + 1, minutes)
    dumped = again.model_dump(mode="json")
    dumped["train"] |= {"teacher": teacher, "r_drop": 0.0, "cr_ctc": None}
    print_line(f"One model learns from the {len(runs)}.")
    try:
        one = train_recipe(
            dumped, runs[0].folder / "distilled", overwrite=True, count_reading=False
        )
    except TransduceError as error:
        print_line(f"It could not: {error}.")
        return None
    return None if one.interrupted else one


def _items(recipe: Recipe, model: Model) -> list[Item]:
    pairs = measurable(
        list(read_pairs(recipe.data.valid, recipe.data.folder)), recipe.task, model.source_tokens
    )
    items = items_of(pairs, recipe.data.multiple_references)
    # As many as validation has time for: an ensemble takes several times as long.
    rows = min(MAX_ROWS, recipe.validation.limit or MAX_ROWS)
    return items[:: -(-len(items) // rows) or 1]


def _measured(
    name: str, trained: Trained, ensemble: tuple[Trained, ...], items: list[Item], metric: str
) -> Rival:
    models = [one.model for one in ensemble]
    found = evaluate(trained.model, items, [metric], bootstrap=0, ensemble=models)
    return Rival(name, trained, ensemble, found.rows[metric])


def best_of(rivals: Sequence[Rival], singles: Sequence[Rival], metric: str) -> Rival:
    """The first model, unless another rival is better than it and than the mean of the seeds.

    Not than the best of them: which seed that is, is mostly chance.
    """
    best, mean = rivals[0], _mean(singles)
    for one in rivals[1:]:
        if all(is_better(metric, one.value, other) for other in (best.value, mean)):
            best = one
    return best


def _mean(rivals: Sequence[Rival]) -> float:
    return sum(one.value for one in rivals) / len(rivals)


def report(
    rivals: Sequence[Rival], singles: Sequence[Rival], metric: str, rows: int, best: Rival
) -> list[str]:
    """What each brought, with the spread of the seeds, and the interval of each difference."""
    values = [one.value for one in singles]
    lines = [f"What the time brought, {metric} on {rows:,} validation pairs:"]
    alone = f"{len(values)} seeds, each alone"
    spread = f"from {min(values):.2f} to {max(values):.2f}"
    lines.append(f"  {alone:<22} {_mean(singles):6.2f} in the mean, {spread}")
    for one in rivals:
        more = ""
        if one is not rivals[0]:
            difference = _difference(rivals[0].measured, one.measured)
            chance = "" if difference.is_clear else ", may be chance"
            more = f"  {difference.shown()} to the first seed{chance}"
        name = "the first seed" if one is rivals[0] else one.name
        lines.append(f"  {name:<22} {one.value:6.2f}{more}")
    names = {one.name: "the ensemble" if one.ensemble else "the distilled model" for one in rivals}
    kept = "the first seed" if best is rivals[0] else names[best.name]
    why = "" if best is not rivals[0] else ", as nothing is better than it and than the mean"
    return [*lines, f"Kept: {kept}{why}."]


def _difference(first: Measured, second: Measured) -> Difference:
    return paired_difference(first[:2], second[:2])
