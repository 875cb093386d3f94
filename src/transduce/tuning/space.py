"""The search space: which keys of a recipe are searched, and over which values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from transduce.errors import RecipeError
from transduce.recipe import Recipe, Section, read_recipe, sections

DIGITS = 3  # of a value that is searched: more only look exact
LOG_FROM = 10.0  # a range is searched on a log scale from this ratio of its ends on
# Keys that decide what is measured: two trials that differ in them cannot be compared.
MEASURE = (
    *("name", "task", "plugins", "metrics", "bleu_tokenizer", "validation", "decode"),
    *("data.valid", "data.test", "data.folder", "data.multiple_references"),
)


@dataclass(frozen=True)
class Range:
    """All numbers from low to high, or the whole ones."""

    low: float
    high: float
    whole: bool = False

    @property
    def log(self) -> bool:
        return self.low > 0 and self.high / self.low >= LOG_FROM

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"

    def about(self) -> str:
        return f"{self}{' (log scale)' * self.log}"

    def holds(self, value: Any) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and self.low <= value <= self.high

    def rounded(self, value: float) -> float:
        if self.whole:
            return int(value)
        return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class Choices:
    """Some values."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ",".join(map(shown, self.values))

    def about(self) -> str:
        return ", ".join(map(shown, self.values))

    def holds(self, value: Any) -> bool:
        return value in self.values


Searched = Range | Choices
Space = dict[str, Searched]


def shown(value: Any) -> str:
    """A value as it is written on the command line."""
    if isinstance(value, float):
        return f"{value:g}"
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf)
    return str(text).removesuffix("\n").removesuffix("\n...").strip()


def override(key: str, value: Any) -> str:
    return f"{key}={shown(value)}"


def value_of(recipe: Recipe, key: str) -> Any:
    """The value of a dotted key; None where the recipe has no such section."""
    found: Any = recipe
    for step in key.split("."):
        found = getattr(found, step, None)
    return found.model_dump(mode="json") if isinstance(found, Section) else found


# ------------------------------------------------------------------------ named on the command line


def named(recipe: Recipe, searches: Sequence[str], fixed: Iterable[str]) -> Space:
    """The space that --search gives: `train.lr=1e-4..1e-2` or `model.dropout=0,0.1,0.3`.

    fixed: keys that are set by an override. Raises RecipeError for a key that does not exist, or
    with a value that the recipe cannot have.
    """
    space: Space = {}
    for text in searches:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not key or not values:
            raise RecipeError(
                f"--search {text} is not of the form train.lr=1e-4..1e-2 or model.dropout=0,0.1,0.3"
            )
        if key in space:
            raise RecipeError(f"--search gives {key} twice; leave one of them out")
        if key in fixed:
            raise RecipeError(
                f"{key} is searched and set at once; leave out --search {text}, or {key}=…"
            )
        if any(key == one or key.startswith(f"{one}.") for one in MEASURE):
            raise RecipeError(
                f"--search {text}: {key} is not searched, as trials that differ in it cannot be "
                f"compared"
            )
        if key.startswith("data.tokens") and recipe.validation.metric == "loss":
            raise RecipeError(
                f"--search {text}: losses of different tokens cannot be compared; set "
                f"validation.metric to one of {', '.join(recipe.metrics)}"
            )
        space[key] = _read(text, key, values)
        ends = space[key]
        for value in ends.values if isinstance(ends, Choices) else (ends.low, ends.high):
            read_recipe(recipe, [override(key, value)])
    return space


def _read(text: str, key: str, values: str) -> Searched:
    low, dots, high = values.partition("..")
    if not dots:
        # By how they are written, as a section is not hashable.
        choices = tuple({shown(one): one for one in map(_value, values.split(","))}.values())
        if len(choices) < 2:
            raise RecipeError(
                f"--search {text} has one value; give several, or set it without --search"
            )
        return Choices(choices)
    ends = [_value(low), _value(high)]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
        raise RecipeError(
            f"--search {text} is a range, which has a number at each end; give other values with "
            f"commas between them"
        )
    if not ends[0] < ends[1]:
        raise RecipeError(f"--search {text}: the first end of a range must be below the second")
    return Range(ends[0], ends[1], _is_whole(key))


def _value(text: str) -> Any:
    """As the recipe's parser reads it: 1e-4 is a number."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text.strip())
    with suppress(yaml.YAMLError):
        return yaml.safe_load(text)
    return text.strip()


def _is_whole(key: str) -> bool:
    place, _, name = key.rpartition(".")
    return any(
        "a whole number" in one.takes
        for section in sections()
        if place in section.places
        for one in section.keys
        if one.name == name
    )


# -------------------------------------------------------------------------- derived from the recipe


def usual(recipe: Recipe, fixed: Iterable[str]) -> Space:
    """The keys that usually matter, each around the recipe's own value; without fixed ones."""
    train, model = recipe.train, recipe.model
    space: Space = {"train.lr": Range(_digits(train.lr / 4), _digits(4 * train.lr))}
    if train.warmup:
        highest = min(4 * train.warmup, max(train.steps // 2, train.warmup))
        space["train.warmup"] = Range(max(train.warmup // 4, 1), highest, whole=True)
    if isinstance(train.batch_tokens, int):
        half = train.batch_tokens // 2
        space["train.batch_tokens"] = Choices((half, train.batch_tokens, 2 * train.batch_tokens))
    space["model.dropout"] = Range(
        _digits(max(model.dropout - 0.2, 0.0)), _digits(min(model.dropout + 0.2, 0.7))
    )
    if recipe.task == "transduce" or train.label_smoothing:
        space["train.label_smoothing"] = Range(0.0, _digits(max(0.2, 2 * train.label_smoothing)))
    if train.r_drop:
        space["train.r_drop"] = Range(_digits(train.r_drop / 4), _digits(4 * train.r_drop))
    if train.cr_ctc is not None:
        weight = train.cr_ctc.weight
        space["train.cr_ctc.weight"] = Range(_digits(weight / 4), _digits(4 * weight))
    if train.start is None:  # the sizes of a trained model are what they are
        space |= _sizes(recipe)
    return {
        key: searched
        for key, searched in space.items()
        if key not in fixed and not any(one.startswith(f"{key}.") for one in fixed)
    }


def _sizes(recipe: Recipe) -> Space:
    """Width and layers, from half to double, of which the recipe allows each by itself."""
    model = recipe.model
    space: Space = {}
    parts = model.parts.values()
    unit = math.lcm(4, *(2 * getattr(part, "heads", 1) for part in parts))
    widths = dict.fromkeys(
        max(unit, round(factor * model.width / unit) * unit) for factor in (0.5, 0.75, 1.5, 2)
    )
    allowed = [one for one in widths if _is_valid(recipe, "model.width", one)]
    if len({*allowed, model.width}) > 1:
        space["model.width"] = Choices(tuple(sorted({*allowed, model.width})))
    for name, part in model.parts.items():
        layers = getattr(part, "layers", None)
        if layers is None:
            continue
        key, ends = f"model.{name}.layers", (max(layers // 2, 1), 2 * layers)
        if all(_is_valid(recipe, key, end) for end in ends):
            space[key] = Range(*ends, whole=True)
    return space


def _is_valid(recipe: Recipe, key: str, value: Any) -> bool:
    try:
        read_recipe(recipe, [override(key, value)])
    except RecipeError:
        return False
    return True


def _digits(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


# ------------------------------------------------------------------------------------ both together


def own_values(recipe: Recipe, space: Mapping[str, Searched]) -> dict[str, Any] | None:
    """The recipe's own values of the keys; None where one of them is not in the space."""
    values = {key: value_of(recipe, key) for key in space}
    inside = all(space[key].holds(value) for key, value in values.items())
    return values if inside else None


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """The recipe of a trial. Raises RecipeError where the values do not go together."""
    return read_recipe(recipe, [override(key, value) for key, value in values.items()])


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The last words of each key that tell it from the others: lr, encoder.layers."""
    keys = list(keys)
    found = {}
    for key in keys:
        words = key.split(".")
        ends = [".".join(words[start:]) for start in range(len(words) - 1, -1, -1)]
        found[key] = next(
            end for end in ends if sum(f".{one}".endswith(f".{end}") for one in keys) == 1
        )
    return found
