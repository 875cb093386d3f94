"""Time that is left once a recipe has had all its updates: models for the tags of the file, further
seeds, together an ensemble, and one model that learns from all of them (distillation).

What each brought is measured on the validation set and shown; what is not better is not used. Each
is a run in a folder of its own within that of the first model. So a command that was killed goes on
where it was: runs that have ended are not trained again, and what was compared is in a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transduce.data.text.pairs import read_pairs
from transduce.errors import TransduceError
from transduce.evaluation.bootstrap import Difference, paired_difference
from transduce.evaluation.evaluate import evaluate
from transduce.evaluation.items import Item, items_of, measurable
from transduce.evaluation.metrics import Measured, is_perfect
from transduce.recipe import Recipe, read_recipe
from transduce.storage import write_json
from transduce.tasks.folder import discard_run, holds_run
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.members import Members, write_members
from transduce.tasks.transduce import Model
from transduce.terminal import duration
from transduce.training.choose_decoding import clock_of
from transduce.training.loop import Trained
from transduce.training.own_file.plan import (
    FINE_TUNING,
    can_teach,
    runs_left,
    runs_of_tags,
    uses_of,
)
from transduce.training.own_file.tags import (
    Strategy,
    folders_of,
    recipe_of_tag,
    shares_of_tags,
)
from transduce.training.prepare import Print
from transduce.training.run_directory.best_model import is_better
from transduce.training.train import finished_run, train_recipe

TEACHER_WEIGHT = 0.5
ROWS = 500  # of the validation set, by which all are compared
SHARE = 0.1  # of the minutes, in which more of them are compared where that is quick
MAX_TAGS_SHOWN = 6
MIN_LEFT = 0.5  # of the time of a run: with less, none is begun
SLOWER = 2.0  # times the expected time that the model of a tag may take
COMPARED = "compared.json"
"""In the run directory: which runs were compared, and what was kept."""
# The folders of further runs.
SEED, DISTILLED = "seed-{}", "distilled"
TITLES: dict[Strategy, str] = {
    "fine-tuned": "fine-tuned for each tag",
    "by-tag": "one for each tag alone",
}


@dataclass(frozen=True)
class Rival:
    """What the time brought: one model, or several together."""

    name: str
    trained: Trained
    ensemble: tuple[Trained, ...]
    measured: Measured
    by_tag: Mapping[str, Trained] = field(default_factory=dict)
    of_tags: Mapping[str, float] = field(default_factory=dict)
    """The metric of each tag, where there are a few."""

    @property
    def value(self) -> float:
        return float(self.measured.score(self.measured.statistics.sum(axis=0)))


class Stopped(Exception):
    """A run was interrupted: nothing else is begun."""

    def __init__(self, run: Trained) -> None:
        self.run = run


class FurtherRuns:
    """The runs after the first one, within its folder, and the seconds that are left for them."""

    def __init__(
        self, first: Trained, recipe: Recipe, minutes: float, resume: bool, print_line: Print
    ) -> None:
        self.first, self.recipe, self.resume, self.print_line = first, recipe, resume, print_line
        self.left = 60 * minutes - first.state.elapsed

    @property
    def is_time(self) -> bool:
        """Whether there is time for another run as the first."""
        return self.left >= MIN_LEFT * self.first.state.elapsed

    def train(
        self, place: str, title: str, made: Mapping[str, Any], seconds: float | None = None
    ) -> Trained:
        """The run in a folder: as it ended, or trained. seconds: at most; None: all that are left.

        Raises Stopped where it is interrupted.
        """
        seconds = self.left if seconds is None else min(seconds, self.left)
        train = {**made["train"], "minutes": seconds / 60}
        recipe, folder = read_recipe({**made, "train": train}), self.first.folder / place
        one = finished_run(folder, recipe) if self.resume else None
        if one is None:
            self.print_line(f"{title}:")
            begun = self.resume
            one = train_recipe(
                recipe, folder, resume=begun, overwrite=not begun, count_reading=False
            )
        if one.interrupted:
            raise Stopped(one)
        self.left -= one.state.elapsed
        return one

    def again(self, number: int) -> dict[str, Any]:
        """The recipe for another seed, with the decoding settings that were chosen for the
        first."""
        validation = self.recipe.validation.model_copy(update={"decoding": "fixed"})
        changes = {"seed": self.recipe.seed + number - 1, "decode": self.first.model.recipe.decode}
        made = self.recipe.model_copy(update={**changes, "validation": validation})
        return made.model_dump(mode="json")

    def of_tags(self, shares: Mapping[str, float], strategy: Strategy) -> dict[str, Trained]:
        """The models for the tags; empty, with a sentence, where one could not be trained."""
        part = FINE_TUNING if strategy == "fine-tuned" else 1.0
        base, title = read_recipe(self.again(1)), TITLES[strategy]
        title = f"{title[:1].upper()}{title[1:]}"
        found = {}
        for tag, folder in folders_of(shares).items():
            made = recipe_of_tag(base, self.first, tag, shares[tag], strategy)
            seconds = part * runs_of_tags([shares[tag]]) * self.first.state.elapsed
            if self.left < MIN_LEFT * seconds:
                self.print_line(f"{title}: there is no time left for {tag}.")
                return {}
            try:
                place = f"{strategy}/{folder}"
                found[tag] = self.train(place, f"{title}, {tag}", made, SLOWER * seconds)
            except TransduceError as error:
                self.print_line(f"It could not: {error}.")
                return {}
        return found

    def seed(self, number: int) -> Trained:
        """The model of another seed."""
        title = f"Seed {self.recipe.seed + number - 1}"
        return self.train(SEED.format(number), title, self.again(number))

    def distilled(self, teachers: Sequence[Trained]) -> Trained | None:
        """One model that learns from all; None, with a sentence, where the network cannot."""
        made = self.again(len(teachers) + 1)
        folders = [str(one.folder) for one in teachers]
        teacher = {"model": folders, "weight": TEACHER_WEIGHT}
        made["train"] |= {"teacher": teacher, "r_drop": 0.0}
        try:
            return self.train(DISTILLED, f"One model learns from the {len(teachers)}", made)
        except TransduceError as error:
            self.print_line(f"It could not: {error}.")
            return None


def discard_further(folder: Path) -> None:
    """Remove the further runs of an earlier training in a folder."""
    for pattern in (SEED.format("*"), DISTILLED, *(f"{name}/*" for name in TITLES)):
        for path in folder.glob(pattern):
            if holds_run(path):
                discard_run(path)
    (folder / COMPARED).unlink(missing_ok=True)


def is_flawless(run: Trained) -> bool:
    """Whether all of the validation set is right."""
    best = run.state.best
    return best is not None and is_perfect(run.model.recipe.validation.metric, best)


def spend(
    first: Trained, recipe: Recipe, minutes: float, print_line: Print, resume: bool = False
) -> Trained:
    """Use what is left of the minutes; returns what is best on the validation set.

    first: the first model. Models of labels, of tags and of running text have no ensembles, and
    stay as they are. So does one that has everything right: nothing could be seen to be better.
    resume: runs that are there already are continued, or used as they ended.
    """
    state, model = first.state, first.model
    if recipe.task != "transduce" or not isinstance(model, GenerativeModel):
        return first
    if state.step < recipe.train.steps or is_flawless(first):
        return first
    shares = shares_of_tags(recipe)
    runs = runs_left(state, minutes)
    uses = uses_of(runs, can_teach(recipe), shares.values())
    if not uses.any:
        return first
    further = FurtherRuns(first, recipe, minutes, resume, print_line)
    print_line(f"All updates are done, and {duration(further.left)} are left: {uses.sentence()}.")
    seeds, student = [first], None
    strategies: dict[Strategy, dict[str, Trained]] = {}
    try:
        if uses.fine_tuned:
            strategies["fine-tuned"] = further.of_tags(shares, "fine-tuned")
        if uses.by_tag:
            strategies["by-tag"] = further.of_tags(shares, "by-tag")
        for number in range(2, uses.seeds + 2):
            if not further.is_time:
                break
            seeds.append(further.seed(number))
        if uses.distilled and further.left > state.elapsed:
            student = further.distilled(seeds)
    except Stopped as stopped:
        print_line(f"Stopped in {stopped.run.folder}. The model in {first.folder} can be used.")
        return replace(first, state=stopped.run.state, interrupted=True)
    return _best(first, recipe, strategies, seeds, student, 60 * SHARE * minutes, print_line)


def _best(
    first: Trained,
    recipe: Recipe,
    strategies: Mapping[Strategy, Mapping[str, Trained]],
    seeds: Sequence[Trained],
    student: Trained | None,
    seconds: float,
    print_line: Print,
) -> Trained:
    """The best of all on the validation set; it is what the folder is used as from now on.

    seconds: in which more than ROWS pairs are compared.
    """
    made: dict[str, Trained] = {"the first model": first}
    for strategy, by_tag in strategies.items():
        if by_tag:
            made[TITLES[strategy]] = replace(first, by_tag=by_tag)
    if len(seeds) > 1:
        made[f"ensemble of {len(seeds)}"] = replace(first, ensemble=tuple(seeds[1:]))
    if student is not None:
        made["distilled into one"] = student
    if len(made) == 1:
        return first
    before = read_compared(first.folder)
    students = [] if student is None else [student]
    of_tags = [one for by_tag in strategies.values() for one in by_tag.values()]
    compared = steps_of([*seeds, *of_tags, *students], first.folder)
    if before.get("compared") == compared and before.get("kept") in made:
        kept = made[before["kept"]]
        print_line(f"Kept, as compared before: {before['kept']}.")
    else:
        items = _items(recipe, first.model)
        valid = recipe.validation.metric
        metric = recipe.metrics[0] if valid == "loss" else valid
        others = {f"seed {n}": one for n, one in enumerate(seeds[1:], start=2)}
        models = sum(1 + len(one.ensemble) for one in (*made.values(), *others.values()))
        items = _some(items, first, metric, recipe, seconds / models)
        rivals = [_measured(name, one, items, metric) for name, one in made.items()]
        singles = [
            rivals[0],
            *(_measured(name, one, items, metric) for name, one in others.items()),
        ]
        best = best_of(rivals, singles, metric)
        for line in report(rivals, singles, metric, len(items), best):
            print_line(line)
        kept = made[best.name]
        values = {one.name: one.value for one in rivals}
        found = {"metric": metric, "pairs": len(items), "values": values, "kept": best.name}
        write_compared(first.folder, {"compared": compared, **found})
    write_members(
        first.folder,
        [one.folder for one in kept.ensemble],
        {tag: one.folder for tag, one in kept.by_tag.items()},
        None if kept.folder == first.folder else kept.folder,
    )
    assert isinstance(kept.model, GenerativeModel)
    kept.model.members = _members(kept)
    return replace(kept, folder=first.folder)


def steps_of(runs: Sequence[Trained], folder: Path) -> dict[str, int]:
    """The updates of runs, by their places within a folder: a run that went on is another one."""
    return {one.folder.relative_to(folder).as_posix(): one.state.step for one in runs}


def read_compared(folder: Path) -> dict[str, Any]:
    """What was compared in a run directory; empty where nothing was."""
    try:
        found = json.loads((folder / COMPARED).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_compared(folder: Path, values: Mapping[str, Any]) -> None:
    write_json(folder / COMPARED, dict(values))


def _items(recipe: Recipe, model: Model) -> list[Item]:
    pairs = measurable(
        list(read_pairs(recipe.data.valid, recipe.data.folder)), recipe.task, model.source_tokens
    )
    items = items_of(pairs, recipe.data.multiple_references)
    return _spread(items, recipe.validation.limit or len(items))


def _spread(items: list[Item], rows: int) -> list[Item]:
    """At most so many of them, from all parts of the file."""
    return items[:: -(-len(items) // max(1, rows)) or 1]


def _some(
    items: list[Item], first: Trained, metric: str, recipe: Recipe, seconds: float
) -> list[Item]:
    """ROWS of them; more where a model does more in so many seconds."""
    some = _spread(items, ROWS)
    if len(some) == len(items):
        return items
    clock = clock_of(recipe)
    began = clock()
    _measured("", first, some, metric)
    each = max(clock() - began, 1e-9) / len(some)
    return _spread(items, max(ROWS, int(seconds / each)))


def _members(trained: Trained) -> Members[Any]:
    return Members(
        tuple(one.model for one in trained.ensemble),
        {tag: one.model for tag, one in trained.by_tag.items()},
    )


def _measured(name: str, trained: Trained, items: list[Item], metric: str) -> Rival:
    """As the folder would be used with these models."""
    model = copy(trained.model)
    assert isinstance(model, GenerativeModel)
    model.members = _members(trained)
    found = evaluate(model, items, [metric], bootstrap=0)
    of_tags = {tag: values[metric].value for tag, values in found.groups.items()}
    shown = of_tags if len(of_tags) <= MAX_TAGS_SHOWN else {}
    return Rival(name, trained, trained.ensemble, found.rows[metric], trained.by_tag, shown)


def best_of(rivals: Sequence[Rival], singles: Sequence[Rival], metric: str) -> Rival:
    """The first model, unless another rival is better than it and than the mean of the seeds.

    Not than the best of them: which seed that is, is mostly chance. So it is whether the first one
    is: an ensemble has to be better than the mean alone. (On validation and test sets, ensembles of
    three seeds were better than the mean in 95 of 96 scores of shipped recipes, and of two to five
    seeds in 198 of 217 of words: benchmarks/results.) Models for the tags must be clearly better
    than the first: each has chosen its checkpoint on a part of these pairs.
    """
    best, mean = rivals[0], _mean(singles)
    for one in rivals[1:]:
        if one.by_tag and not _difference(rivals[0].measured, one.measured).is_clear:
            continue
        of_seeds_alone = best is rivals[0] and bool(one.ensemble)
        others = [mean] if of_seeds_alone else [best.value, mean]
        if all(is_better(metric, one.value, other) for other in others):
            best = one
    return best


def _mean(rivals: Sequence[Rival]) -> float:
    return sum(one.value for one in rivals) / len(rivals)


def report(
    rivals: Sequence[Rival], singles: Sequence[Rival], metric: str, rows: int, best: Rival
) -> list[str]:
    """What each brought, with the spread of the seeds, and the interval of each difference."""
    values = [one.value for one in singles]
    first, by_tag = rivals[0], any(one.by_tag for one in rivals)
    lines = [f"What the time brought, {metric} on {rows:,} validation pairs:"]
    if len(values) > 1:
        alone = f"{len(values)} seeds, each alone"
        spread = f"from {min(values):.2f} to {max(values):.2f}"
        lines.append(f"  {alone:<24} {_mean(singles):6.2f} in the mean, {spread}")
    title = "one model for all" if by_tag else "the first seed"
    for one in rivals:
        of_tags = ", ".join(f"{tag} {value:.2f}" for tag, value in one.of_tags.items())
        more = f" ({of_tags})" if of_tags else ""
        if one is not first:
            difference = _difference(first.measured, one.measured)
            chance = "" if difference.is_clear else ", may be chance"
            more += f"  {difference.shown()} to {title}{chance}"
        lines.append(f"  {title if one is first else one.name:<24} {one.value:6.2f}{more}")
    return [*lines, f"Kept: {_kept(best, first, title, by_tag)}."]


def _kept(best: Rival, first: Rival, title: str, by_tag: bool) -> str:
    if best is first:
        why = "nothing is better than it and than the mean"
        if by_tag:
            why = "nothing is better than it, the models for the tags not clearly"
        return f"{title}, as {why}"
    if best.by_tag:
        return f"the models {best.name}"
    return (
        "the ensemble, better than its seeds in the mean"
        if best.ensemble
        else "the distilled model"
    )


def _difference(first: Measured, second: Measured) -> Difference:
    return paired_difference(first[:2], second[:2])
