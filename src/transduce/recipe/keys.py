"""The reference of recipe keys: type, default and description of each, from the schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import Tag
from pydantic.fields import FieldInfo

from transduce.recipe.recipe import Recipe
from transduce.recipe.section import Section


@dataclass(frozen=True)
class Key:
    name: str
    takes: str
    default: str
    """As YAML; empty where the key is required or is a section."""
    required: bool
    about: str


@dataclass(frozen=True)
class SectionKeys:
    """The keys of one section, and the dotted names of the keys that take such a section."""

    places: tuple[str, ...]
    about: str
    keys: tuple[Key, ...]


def sections() -> list[SectionKeys]:
    """All keys by section; a section that several keys take is listed once."""
    found: dict[tuple[Key, ...], SectionKeys] = {}
    for place, about, part in _parts(Recipe, "", "the whole recipe"):
        keys = tuple(_key(name, field) for name, field in part.model_fields.items())
        before = found.get(keys, SectionKeys((), "", keys))
        if about not in before.about:
            about = f"{before.about} {about}".strip()
        # Two kinds of a section may have the same section in them: data.train.where.
        places = tuple(dict.fromkeys([*before.places, place]))
        found[keys] = SectionKeys(places, about, keys)
    return list(found.values())


def dotted_keys() -> list[str]:
    """Every key by its full name, such as model.encoder.layers."""
    return [
        f"{place}.{key.name}".lstrip(".")
        for section in sections()
        for place in section.places
        for key in section.keys
    ]


def describe_type(annotation: Any, limits: Iterable[Any] = ()) -> str:
    """A type in words, such as "a whole number above 0"."""
    # Field(ge=0) inside an annotation keeps its limits one level down.
    limits = [one for limit in limits for one in getattr(limit, "metadata", [limit])]
    called = [limit for limit in limits if isinstance(limit, str)]
    if called:
        return called[-1]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe_type(inner[0], [*inner[1:], *limits])
    if origin is Literal:
        return _listed([str(choice) for choice in inner])
    if origin in (Union, UnionType):
        kinds = dict.fromkeys(describe_type(kind, limits) for kind in inner if kind is not NoneType)
        return _listed(list(kinds)) + (", or null" if NoneType in inner else "")
    if origin is list:
        return f"a list of {describe_type(inner[0])}"
    if origin is tuple:
        return f"a list of {len(inner)}, each {describe_type(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "a section"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    signs = {"gt": "above", "ge": "of at least", "lt": "below", "le": "at most"}
    bounds = [
        f"{sign} {getattr(limit, name)}"
        for limit in limits
        for name, sign in signs.items()
        if hasattr(limit, name)
    ]
    return " ".join([names[annotation], " and ".join(bounds)]).strip()


def choices(annotation: Any) -> list[str]:
    """The literal values that a key of this type may have."""
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return [str(choice) for choice in inner]
    return [choice for kind in inner for choice in choices(kind)]


def section_types(annotation: Any, tag: str = "") -> dict[str, type[Section]]:
    """The section classes that a key of this type takes, by their discriminator tag."""
    if isinstance(annotation, type):
        return {tag: annotation} if issubclass(annotation, Section) else {}
    inner = get_args(annotation)
    tags = [one.tag for one in inner[1:] if isinstance(one, Tag)]
    found: dict[str, type[Section]] = {}
    for kind in inner:
        found |= section_types(kind, tags[0] if tags else tag)
    return found


def show(value: Any) -> str:
    """A value as one line of YAML."""
    return str(yaml.safe_dump(value, default_flow_style=True, width=10**6)).split("\n")[0]


def _parts(part: type[Section], place: str, about: str) -> Iterator[tuple[str, str, type[Section]]]:
    yield place, " ".join((part.__doc__ or about).split()), part
    for name, field in part.model_fields.items():
        dotted = f"{place}.{name}".lstrip(".")
        if get_origin(field.annotation) is list:
            continue  # sections in a list may also stand alone, and are listed there
        for inner in section_types(field.annotation).values():
            yield from _parts(inner, dotted, field.description or "")


def _key(name: str, field: FieldInfo) -> Key:
    takes = describe_type(field.annotation, field.metadata)
    plain = field.is_required() or isinstance(field.default, Section)
    default = "" if plain else show(_jsonable(field.default))
    return Key(name, takes, default, field.is_required(), field.description or "")


def _jsonable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _listed(choices: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
