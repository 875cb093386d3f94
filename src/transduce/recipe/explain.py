"""Error messages for an invalid recipe: file and line, what is wrong, how to fix it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from transduce.errors import RecipeError
from transduce.recipe.keys import choices, describe_type, dotted_keys, section_types, show
from transduce.recipe.recipe import Recipe
from transduce.recipe.section import InvalidValue, Section

AnySection = TypeVar("AnySection", bound=Section)
KeyPath = tuple[str | int, ...]
COMMAND_LINE = 10**9  # in place of a line number; sorts after the lines of the file

# Names from other toolkits that spelling alone would not match.
OTHER_NAMES = {
    "batch_size": "train.batch_tokens",
    "learning_rate": "train.lr",
    "max_updates": "train.steps",
    "d_model": "model.width",
    "hidden_size": "model.width",
    "embedding_dim": "model.width",
    "dim_feedforward": "model.encoder.feed_forward",
    "rnn_type": "model.encoder.cell",
    "vocab_size": "data.tokens.both.size",
}


@dataclass
class Problems:
    """The problems found in the recipe called `name`, and the line number of each key."""

    name: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, path: KeyPath, sentence: str) -> None:
        """Report a problem with a key; a key that is absent takes the line of its parent."""
        while path and path not in self.lines:
            path = path[:-1]
        self.at(self.lines.get(path, 0), sentence)

    def at(self, line: int, sentence: str) -> None:
        if line == COMMAND_LINE:
            place = "on the command line"
        else:
            place = f"{self.name}:{line}" if line else self.name
        self.found.append((line, f"{place}: {sentence}"))

    def __str__(self) -> str:
        """One line per problem, in the order of the file."""
        return "\n".join(dict.fromkeys(text for _, text in sorted(self.found, key=_line)))


def _line(problem: tuple[int, str]) -> int:
    return problem[0]


def nearest(word: str, choices: Iterable[str], otherwise: str = "", prefix: str = "") -> str:
    """`; did you mean ...?`, or `otherwise` where nothing is near."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else otherwise


def checked(kind: type[AnySection], name: str, values: dict[str, Any]) -> AnySection:
    """The section `name` of a recipe, of these values alone.

    Raises RecipeError with one sentence for the first thing that is wrong.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        _, sentence = next(explain(error, {name: values}, (name,)))
        raise RecipeError(sentence) from None


def explain(
    error: ValidationError, values: dict[str, Any], within: KeyPath = ()
) -> Iterator[tuple[KeyPath, str]]:
    """Pydantic's validation errors for `values` as sentences, each with the key that it is about.

    within: where what was validated stands in `values`.
    """
    details = [(_locate((*within, *one["loc"])), one) for one in error.errors()]
    unknown = [one for one in error.errors() if one["type"] == "extra_forbidden"]
    reported = [_unknown_key((*within, *detail["loc"])) for detail in unknown]
    yield from reported
    for location, detail in details:
        if detail["type"] == "extra_forbidden":
            continue
        if detail["type"] == "missing" and location.field and location.field.is_required():
            # Its misspelling has been reported.
            if not any(f"did you mean {location.shown}?" in sentence for _, sentence in reported):
                yield (
                    location.path,
                    f"the key {location.shown} is missing: {location.field.description}",
                )
        elif detail["type"] == "value_error":
            invalid = detail["ctx"]["error"]
            assert isinstance(invalid, InvalidValue)
            path = (*location.path, *filter(None, invalid.key.split(".")))
            yield path, f"{'.'.join(map(str, path))} {invalid.message}"
        elif detail["type"] == "union_tag_invalid":
            kind = detail["input"]["kind"]
            kinds = section_types(location.field.annotation if location.field else None)
            near = nearest(str(kind), kinds)
            yield (
                (*location.path, "kind"),
                f"{location.shown}.kind is {show(kind)}; it must be {' or '.join(kinds)}{near}",
            )
        else:
            yield location.path, _wrong_value(location, values)


@dataclass(frozen=True)
class _Location:
    """Where an error is: the key path, the key's field, and the section types allowed there."""

    path: KeyPath
    field: FieldInfo | None
    part: type[Section] | None
    tag: str
    others: dict[str, type[Section]]

    @property
    def shown(self) -> str:
        return ".".join(str(step) for step in self.path)


def _locate(steps: KeyPath) -> _Location:
    """The key path of a pydantic location, without pydantic's own steps (tags, union members)."""
    path: KeyPath = ()
    key: FieldInfo | None = None
    tag = ""
    here: dict[str, type[Section]] = {"": Recipe}
    others: dict[str, type[Section]] = {}
    for step in steps:
        fields = next(iter(here.values())).model_fields if len(here) == 1 else {}
        if len(here) > 1 and step in here:
            tag = str(step)
            others = {name: part for name, part in here.items() if name != tag}
            here = {tag: here[tag]}
        elif step in fields:
            path, key = (*path, step), fields[str(step)]
            tag, here, others = "", section_types(key.annotation), {}
        elif isinstance(step, int):
            path, here = (*path, step), section_types(key.annotation) if key else {}
        else:
            break
    part = next(iter(here.values())) if len(here) == 1 else None
    return _Location(path, key, part, tag, others)


def _unknown_key(steps: KeyPath) -> tuple[KeyPath, str]:
    location, key = _locate(steps[:-1]), str(steps[-1])
    assert location.part is not None
    prefix = f"{location.shown}." if location.path else ""
    other = next((tag for tag, part in location.others.items() if key in part.model_fields), None)
    if other and "kind" in location.part.model_fields:
        sentence = (
            f"{prefix}{key} is a key of kind {other}, but {location.shown} is of kind "
            f"{location.tag}; leave it out, or set {prefix}kind: {other}"
        )
    elif other:
        needs = [name for name, known in location.part.model_fields.items() if known.is_required()]
        sentence = (
            f"{prefix}{key} does not go with {' and '.join(f'{prefix}{name}' for name in needs)}; "
            "a corpus is given by source and target, by file, by text, by name and split, or by hub"
        )
    else:
        # The same key in a deeper section is a better guess than a similar spelling here.
        below = [dotted for dotted in dotted_keys() if _ends(dotted, prefix, key)] if prefix else []
        elsewhere = _elsewhere(key, prefix)
        near = elsewhere if below else nearest(key, location.part.model_fields, elsewhere, prefix)
        sentence = f"unknown key {prefix}{key}{near}"
    return (*location.path, key), sentence


def _ends(dotted: str, prefix: str, key: str) -> bool:
    return dotted.startswith(prefix) and dotted.endswith(f".{key}")


def _elsewhere(key: str, prefix: str) -> str:
    """A suggestion: the same key in a section below this one, otherwise anywhere."""
    same = [dotted for dotted in dict.fromkeys(dotted_keys()) if dotted.endswith(f".{key}")]
    below = [dotted for dotted in same if dotted.startswith(prefix)] or same
    depth = min((dotted.count(".") for dotted in below), default=0)
    below = [dotted for dotted in below if dotted.count(".") == depth]
    found = below or [OTHER_NAMES[key]] if key in OTHER_NAMES else below
    if not found:
        return "; `transduce recipes --keys` lists them all"
    return f"; did you mean {' or '.join(found)}?"


def _wrong_value(location: _Location, values: dict[str, Any]) -> str:
    assert location.field is not None
    annotation, limits, shown = location.field.annotation, location.field.metadata, location.shown
    value: Any = values
    for depth, step in enumerate(location.path, start=1):
        # A list that is too short has no such item: report the list itself.
        if isinstance(step, int) and step < len(value):
            value = value[step]
            if depth == len(location.path):
                shown = f"item {step + 1} of {shown.rpartition('.')[0]}"
                annotation, limits = get_args(annotation)[0], []
        elif isinstance(step, int):
            shown = shown.rpartition(".")[0]
        elif not isinstance(value, list):  # a list of corpora is short for the key `of`
            value = value[step]
    allowed = section_types(annotation)
    if allowed:
        if value is None:
            return f"{shown} is empty; give it keys, or leave it out"
        names = list(dict.fromkeys(n for part in allowed.values() for n in part.model_fields))
        hint = f"; did you mean {shown}.kind: {value}?" if value in list(allowed) else ""
        return (
            f"{shown} is {_short(value)}, but it is a section with keys: {', '.join(names)}{hint}"
        )
    takes = describe_type(annotation, limits)
    hint = ""
    if isinstance(value, str):
        is_list = get_origin(annotation) is list
        hint = f"; write [{value}]" if is_list else nearest(value, choices(annotation))
    elif isinstance(value, float) and not math.isfinite(value):
        hint = ", and finite"
    elif takes in ("text", "a plain name", "a file name") and value is not None:
        hint = "; put quotes around it"
    return f"{shown} is {_short(value)}; it must be {takes}{hint}"


def _short(value: Any) -> str:
    text = show(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
