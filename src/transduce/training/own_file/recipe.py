"""A file of the user's own in place of a recipe: what it is, and the recipe for it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transduce.errors import DataError, HardwareError, RecipeError
from transduce.recipe import RECIPE, recipe_file
from transduce.training.distributed.launchers import place_in_run

if TYPE_CHECKING:
    from transduce.automatic import Choice, Found
    from transduce.recipe import Corpus, Recipe

RECIPES = (".yaml", ".yml")
LOOKED_AT = 1 << 16  # bytes of a file in which a recipe has its key `data`
MAX_CHECKED = 20_000  # pairs of each part that the data checks read before training
THOROUGHLY = 100_000  # the same of `transduce check`
SHOWN = 4  # warnings
CHOSEN = "chosen.yaml"
"""The commented recipe in the run directory."""
# What a user may say of the file, by the keys of a recipe; it then holds for all parts.
HINTS = ("source", "target", "tags", "audio", "header", "format")


def data_files(first: str | Path, others: Iterable[str]) -> tuple[list[Path], list[str]]:
    """The data files among the arguments of a command, and the rest of them: overrides.

    No files: the first is a recipe, a run directory, or nothing that is there.
    """
    rest = list(others)
    path = Path(first)
    if path.is_fifo():
        raise DataError(
            f"{path} is a pipe, which can be read once, and data are read several times; write "
            f"them into a file first"
        )
    if recipe_file(first) is None or not path.exists() or _is_recipe(path):
        return [], rest
    more = [one for one in rest if "=" not in one and Path(one).exists()]
    return [path, *map(Path, more)], [one for one in rest if one not in more]


def _is_recipe(path: Path) -> bool:
    if path.is_dir():
        return (path / RECIPE).is_file() or not any(path.iterdir())
    if path.suffix.lower() in RECIPES:
        return True
    try:
        with path.open("rb") as file:
            beginning = file.read(LOOKED_AT)
    except OSError:
        return True  # reading the recipe says what is wrong
    return b"\ndata:" in b"\n" + beginning


def chosen_for(
    paths: list[Path], overrides: list[str], minutes: float | None, elsewhere: bool = False
) -> tuple[Found, Choice, list[str]]:
    """What the files are, the recipe for them, and the overrides that are left for it.

    elsewhere: the recipe may be for a train.device that this machine does not have.
    """
    place = place_in_run()
    if place is not None and place.size > 1:
        raise RecipeError(
            "several processes need one recipe: write it first with `transduce new FILE > my.yaml`"
        )
    import yaml

    from transduce.automatic import choose, inspect, this_machine
    from transduce.automatic.choose import MINUTES
    from transduce.automatic.machine import ELSEWHERE

    hints: dict[str, Any] = {}
    left = []
    device = "auto"
    for override in overrides:
        key, _, text = override.partition("=")
        name = key.removeprefix("data.train.")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        if key == "task" or (name != key and name in HINTS):
            hints[name] = value
            continue
        if key == "train.minutes" and isinstance(value, int | float) and value > 0:
            minutes = minutes or float(value)
        device = str(value) if key == "train.device" else device
        left.append(override)
    found = inspect(paths, hints)
    try:
        machine = this_machine(device)
    except HardwareError:
        if not elsewhere or device.partition(":")[0] != ELSEWHERE.device:
            raise
        machine = ELSEWHERE
    return found, choose(found, machine, minutes or MINUTES), left


def recipe_text(found: Found, choice: Choice, start: Path | None = None) -> str:
    """The recipe as YAML. start: the folder that it is for; None: it names its data absolutely."""
    from transduce.automatic import commented

    folder: str | None = str(found.folder)
    if start is not None and found.folder.is_relative_to(start):
        folder = str(found.folder.relative_to(start))
    return commented(choice, [*found.seen, *found.warnings], None if folder == "." else folder)


def recipe_of(found: Found, choice: Choice, overrides: list[str]) -> Recipe:
    """The recipe that `train` and `check` use: the text of `new`, with overrides."""
    from transduce.recipe import parse_recipe

    return parse_recipe(recipe_text(found, choice), "the chosen recipe", Path.cwd(), overrides)


def print_found(found: Found, choice: Choice) -> None:
    for sentence in (*found.seen, *choice.about):
        print(sentence)
    for warning in found.warnings:
        print(f"warning: {warning}.")
    sys.stdout.flush()


def print_problems(recipe: Recipe, found: Found) -> None:
    """What the data checks warn of. Raises DataError for data that cannot be trained on."""
    from transduce.data.doctor.check import examine

    diagnosis = examine(first_pairs(recipe) if pairs_of(found) > MAX_CHECKED else recipe)
    if not diagnosis.ok:
        raise DataError(diagnosis.verdict)
    warnings = [finding for finding in diagnosis.findings if finding.severity == "warning"]
    for finding in warnings[:SHOWN]:
        where = f" ({finding.examples[0]})" if finding.examples else ""
        print(f"warning: {finding.what}{where}. {finding.remedy}")
    if len(warnings) > SHOWN:
        print(f"and {len(warnings) - SHOWN} more: `transduce check` has all of them.")
    sys.stdout.flush()


def pairs_of(found: Found) -> float:
    """How many pairs a file has, or lines of running text."""
    if found.task == "language model":  # whose rows are its letters
        return found.rows / (found.target.characters.mean + 1)
    return found.rows


def first_pairs(recipe: Recipe, most: int | None = None) -> Recipe:
    """The recipe with so many pairs of each part: of millions, the first say enough. Of a training
    file that is cut into parts, these are of all of it: to find those of a small part, much or all
    of it would be read."""
    most = MAX_CHECKED if most is None else most
    parts: dict[str, Corpus | None] = {}
    for name in ("train", "valid", "test"):
        corpus = getattr(recipe.data, name)
        cut = getattr(corpus, "split", None) is not None
        if name != "train" and cut:
            parts[name] = None
        elif corpus is not None:
            changes: dict[str, Any] = {"limit": min(corpus.limit or most, most)}
            parts[name] = corpus.model_copy(update=changes | ({"split": None} if cut else {}))
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=parts)})
