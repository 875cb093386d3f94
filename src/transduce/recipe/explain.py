"""What is wrong with a recipe: sentences that say where, what, and how to mend it."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from transduce.recipe.keys import choices, dotted_keys, forms, show, words
from transduce.recipe.recipe import InvalidValue, Recipe, Section

Dotted = tuple[str | int, ...]
COMMAND_LINE = 10**9  # in place of a line number: what stands there comes last

# What other toolkits call it, where the spelling gives no hint.
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
class Complaints:
    """What is wrong with a recipe called `name`, and the line of each of its keys."""

    name: str
    lines: dict[Dotted, int] = field(default_factory=dict)
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, path: Dotted, sentence: str) -> None:
        """Complain about a key; a key that was not written is told by the nearest above it."""
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
        """One line each, in the order of the file."""
        return "\n".join(dict.fromkeys(text for _, text in sorted(self.found, key=_line)))


def _line(complaint: tuple[int, str]) -> int:
    return complaint[0]


def nearest(word: str, choices: Iterable[str], otherwise: str = "", prefix: str = "") -> str:
    """`; did you mean ...?`, or `otherwise` where nothing is near."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f"; did you mean {prefix}{close[0]}?" if close else otherwise


def explain(error: ValidationError, values: dict[str, Any], complaints: Complaints) -> None:
    """Add what pydantic found wrong with `values`, in our words."""
    unknown = [d for d in error.errors() if d["type"] == "extra_forbidden"]
    told = [_unknown_key(detail, complaints) for detail in unknown]
    for detail in error.errors():
        spot = _find(detail["loc"])
        if detail["type"] == "extra_forbidden":
            continue
        if detail["type"] == "missing" and spot.field and spot.field.is_required():
            # Its misspelling was told already.
            if not any(f"did you mean {spot.shown}?" in sentence for sentence in told):
                complaints.add(
                    spot.path, f"the key {spot.shown} is missing: {spot.field.description}"
                )
        elif detail["type"] == "value_error":
            misfit = detail["ctx"]["error"]
            assert isinstance(misfit, InvalidValue)
            path = (*spot.path, *filter(None, misfit.key.split(".")))
            complaints.add(path, f"{'.'.join(map(str, path))} {misfit.said}")
        elif detail["type"] == "union_tag_invalid":
            kind = detail["input"]["kind"]
            kinds = forms(spot.field.annotation if spot.field else None)
            near = nearest(str(kind), kinds)
            complaints.add(
                (*spot.path, "kind"),
                f"{spot.shown}.kind is {show(kind)}; it must be {' or '.join(kinds)}{near}",
            )
        else:
            complaints.add(spot.path, _wrong_value(spot, values))


@dataclass(frozen=True)
class _Spot:
    """Where an error is: the path in the recipe, the key's field, and what may stand there."""

    path: Dotted
    field: FieldInfo | None
    part: type[Section] | None
    tag: str
    others: dict[str, type[Section]]

    @property
    def shown(self) -> str:
        return ".".join(str(step) for step in self.path)


def _find(location: tuple[str | int, ...]) -> _Spot:
    """A pydantic location without the steps that are pydantic's own: tags, members of a union."""
    path: Dotted = ()
    key: FieldInfo | None = None
    tag = ""
    here: dict[str, type[Section]] = {"": Recipe}
    others: dict[str, type[Section]] = {}
    for step in location:
        fields = next(iter(here.values())).model_fields if len(here) == 1 else {}
        if len(here) > 1 and step in here:
            tag = str(step)
            others = {name: part for name, part in here.items() if name != tag}
            here = {tag: here[tag]}
        elif step in fields:
            path, key = (*path, step), fields[str(step)]
            tag, here, others = "", forms(key.annotation), {}
        elif isinstance(step, int):
            path, here = (*path, step), forms(key.annotation) if key else {}
        else:
            break
    part = next(iter(here.values())) if len(here) == 1 else None
    return _Spot(path, key, part, tag, others)


def _unknown_key(detail: ErrorDetails, complaints: Complaints) -> str:
    spot, key = _find(detail["loc"][:-1]), str(detail["loc"][-1])
    assert spot.part is not None
    prefix = f"{spot.shown}." if spot.path else ""
    other = next((tag for tag, part in spot.others.items() if key in part.model_fields), None)
    if other and "kind" in spot.part.model_fields:
        sentence = (
            f"{prefix}{key} is a key of kind {other}, but {spot.shown} is of kind {spot.tag}; "
            f"leave it out, or set {prefix}kind: {other}"
        )
    elif other:
        needs = [name for name, known in spot.part.model_fields.items() if known.is_required()]
        sentence = (
            f"{prefix}{key} does not go with {' and '.join(f'{prefix}{name}' for name in needs)}; "
            "a corpus is given by source and target, by file, by text, by name and split, or by hub"
        )
    else:
        # The same word further down is nearer than another one that is spelt alike here.
        below = [dotted for dotted in dotted_keys() if _ends(dotted, prefix, key)] if prefix else []
        elsewhere = _elsewhere(key, prefix)
        near = elsewhere if below else nearest(key, spot.part.model_fields, elsewhere, prefix)
        sentence = f"unknown key {prefix}{key}{near}"
    complaints.add((*spot.path, key), sentence)
    return sentence


def _ends(dotted: str, prefix: str, key: str) -> bool:
    return dotted.startswith(prefix) and dotted.endswith(f".{key}")


def _elsewhere(key: str, prefix: str) -> str:
    """Where else such a key is: below this place, else anywhere."""
    same = [dotted for dotted in dict.fromkeys(dotted_keys()) if dotted.endswith(f".{key}")]
    below = [dotted for dotted in same if dotted.startswith(prefix)] or same
    found = below or [OTHER_NAMES[key]] if key in OTHER_NAMES else below
    if not found:
        return "; `transduce recipes --keys` lists them all"
    return f"; did you mean {' or '.join(found)}?"


def _wrong_value(spot: _Spot, values: dict[str, Any]) -> str:
    assert spot.field is not None
    annotation, limits, shown = spot.field.annotation, spot.field.metadata, spot.shown
    value: Any = values
    for step in spot.path:
        # Of a list that is too short there is no such item: then the list is what is wrong.
        if isinstance(step, int) and step < len(value):
            shown = f"item {step + 1} of {shown.rpartition('.')[0]}"
            annotation, limits, value = get_args(annotation)[0], [], value[step]
        elif isinstance(step, int):
            shown = shown.rpartition(".")[0]
        elif not isinstance(value, list):  # a list of corpora is short for the key `of`
            value = value[step]
    allowed = forms(annotation)
    if allowed:
        if value is None:
            return f"{shown} has nothing under it; give it keys, or leave it out"
        names = list(dict.fromkeys(n for part in allowed.values() for n in part.model_fields))
        hint = f"; did you mean {shown}.kind: {value}?" if value in list(allowed) else ""
        return f"{shown} is {_short(value)}, but it takes keys of its own: {', '.join(names)}{hint}"
    takes = words(annotation, limits)
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
