"""The recipe's choices follow the registry: what a plugin registers can be named in a recipe.

The sections are pydantic models, whose fields say what a key takes. After each registration the
fields of `_NAMES` and `_PARTS` are widened, so validation, error messages and the list of keys know
the new names without a word about them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import Field, Tag, create_model

from transduce.errors import PluginError
from transduce.recipe import model as parts
from transduce.recipe.data import Data, Tokens, TokensOfSides
from transduce.recipe.keys import choices
from transduce.recipe.model import RecurrentDecoder
from transduce.recipe.recipe import Recipe
from transduce.recipe.section import Section
from transduce.recipe.training import Train, Validation
from transduce.registry import Registered, Registry, register

# The keys whose values are names, by what gives these names.
_NAMES: tuple[tuple[Registry, type[Section], str], ...] = (
    (register.attention_score, RecurrentDecoder, "attention"),
    (register.positions, parts.TransformerEncoder, "positions"),
    (register.positions, parts.TransformerDecoder, "positions"),
    (register.positions, parts.ConvolutionalEncoder, "positions"),
    (register.positions, parts.ConvolutionalDecoder, "positions"),
    (register.tokenizer, Tokens, "level"),
    (register.optimizer, Train, "optimizer"),
    (register.metric, Validation, "metric"),
    (register.metric, Recipe, "metrics"),
)
# The keys that take a section, whose kind is such a name.
_PARTS: tuple[tuple[Registry, str, Any], ...] = (
    (register.encoder, "encoder", parts.Encoder),
    (register.decoder, "decoder", parts.Decoder),
)
# From the innermost to the whole: each holds the schema of those before it.
_REBUILT = (
    RecurrentDecoder,
    parts.TransformerEncoder,
    parts.TransformerDecoder,
    parts.ConvolutionalEncoder,
    parts.ConvolutionalDecoder,
    parts.Model,
    Tokens,
    TokensOfSides,
    Data,
    Train,
    Validation,
    Recipe,
)
_ORIGINAL = {(section, key): section.model_fields[key].annotation for _, section, key in _NAMES}
_GIVEN = ("self", "width", "dropout")  # by the network, and not by the recipe
_KINDS = (bool, int, float, str)


def used_plugins(recipe: Recipe) -> list[str]:
    """The plugins whose parts a recipe names, in the order of its keys."""
    return list(dict.fromkeys(one.origin for one in _used(recipe)))


def _used(recipe: Recipe) -> Iterator[Registered]:
    for registry, section, key in _NAMES:
        for part in _sections(recipe):
            if type(part) is section:
                value = getattr(part, key)
                names = value if isinstance(value, list) else [value]
                yield from (registry[name] for name in names if name in registry)
    for registry, key, _ in _PARTS:
        kind = getattr(getattr(recipe.model, key), "kind", None)
        if kind in registry:
            yield registry[str(kind)]


def _sections(section: Section) -> Iterator[Section]:
    yield section
    for value in vars(section).values():
        if isinstance(value, Section):
            yield from _sections(value)


def _follow_registry() -> None:
    """Widen what the recipe takes to all that is registered now."""
    for registry, section, key in _NAMES:
        section.model_fields[key].annotation = _widened(_ORIGINAL[section, key], tuple(registry))
    for registry, key, built_in in _PARTS:
        union, marks = get_args(built_in)[0], get_args(built_in)[1:]
        kinds = [*get_args(union), *(_section_of(name, registry) for name in registry)]
        widened = Annotated[Union[tuple(kinds)], *marks]  # type: ignore[valid-type]  # noqa: UP007
        parts.Model.model_fields[key].annotation = cast("Any", widened | None)
    for section in _REBUILT:
        section.model_rebuild(force=True)


def _widened(annotation: Any, names: tuple[str, ...]) -> Any:
    """The type with these names added to its Literal."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return Literal[(*inner, *names)]
    if origin is list:
        return list[_widened(inner[0], names)]  # type: ignore[misc]
    return annotation


_SECTIONS: dict[Callable[..., Any], type[Section]] = {}


def _section_of(name: str, registry: Registry) -> Any:
    """The section of a registered encoder or decoder: its keys are the arguments of its class."""
    part = registry[name].part
    if part not in _SECTIONS:
        _SECTIONS[part] = _section(name, part, registry.kind)
    return Annotated[_SECTIONS[part], Tag(name)]


def _section(name: str, part: Callable[..., Any], kind: str) -> type[Section]:
    fields: dict[str, Any] = {
        "kind": (Literal[name], Field(name, description=f"the {kind} of a plugin"))
    }
    hints = typing.get_type_hints(getattr(part, "__init__") if isinstance(part, type) else part)  # noqa: B009
    for key, argument in inspect.signature(part).parameters.items():
        if key in _GIVEN:
            continue
        takes = hints.get(key)
        if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD) or not _simple(takes):
            raise PluginError(
                f"the {kind} {name} takes the argument {key}, which no recipe can give: annotate "
                f"it as int, float, bool, str or a Literal of texts"
            )
        default = ... if argument.default is argument.empty else argument.default
        fields[key] = (takes, Field(default, description=f"{key} of {name}"))
    about = (inspect.getdoc(part) or f"The {kind} {name}.").partition("\n\n")[0]
    made = create_model(f"{name.title()}{kind.title()}", __base__=Section, **fields)
    made.__doc__ = " ".join(about.split())
    return made


def _simple(takes: Any) -> bool:
    if get_origin(takes) is Literal:
        return all(isinstance(choice, str) for choice in get_args(takes))
    plain = [one for one in get_args(takes) or (takes,) if one is not type(None)]
    return bool(plain) and all(one in _KINDS for one in plain)


for _registry, _part, _key in _NAMES:
    _registry.built_in |= frozenset(choices(_ORIGINAL[_part, _key]))
for _registry, _key, _built_in in _PARTS:
    _registry.built_in |= {
        mark.tag
        for one in get_args(get_args(_built_in)[0])
        for mark in get_args(one)
        if isinstance(mark, Tag)
    }
register.listeners.append(_follow_registry)
if any(register.registries):
    _follow_registry()
