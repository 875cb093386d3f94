"""Reading recipes: YAML with line numbers, presets, overrides; errors that say how to mend them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from transduce.errors import RecipeError
from transduce.presets import PRESETS
from transduce.recipe import Recipe

Keys = tuple[str | int, ...]
UNION_TAGS = {"parallel", "columns", "named", "transformer", "recurrent"}


def shipped() -> dict[str, str]:
    """The recipes that come with transduce: name to YAML text."""
    folder = resources.files("transduce") / "recipes"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text(encoding="utf-8") for f in files}


def load_recipe(where: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A validated recipe from a YAML file, or from a shipped recipe's name.

    Relative paths of a file's recipe start at that file's folder, those of a shipped one at the
    current folder. Raises RecipeError with file, line, key and the nearest right key.
    """
    path = Path(where)
    known = shipped()
    if str(where) in known and not path.is_file():
        return parse_recipe(known[str(where)], f"recipe {where}", Path.cwd(), overrides)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = _nearest(str(where), known)
        raise RecipeError(
            f"there is no recipe file {where} and no shipped recipe of that name"
            f"{near or '; `transduce recipes` lists the shipped ones'}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"the recipe {where} cannot be read: {error}") from None
    return parse_recipe(text, str(where), path.resolve().parent, overrides)


def parse_recipe(text: str, name: str, folder: Path, overrides: Iterable[str] = ()) -> Recipe:
    """A validated recipe from YAML text; `name` is what errors call it."""
    lines: dict[Keys, str] = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise RecipeError(f"{name}{line}: this is not valid YAML: {problem}") from None
    if not isinstance(node, yaml.MappingNode):
        raise RecipeError(f"{name}: a recipe is a mapping of keys such as data, model and train")
    values = _plain(node, (), lines, name)
    for override in overrides:
        _apply(values, override, lines)
    _expand_preset(values, lines, name)
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(_explain(error, lines, name)) from None
    start = Path(recipe.data.folder).expanduser() if recipe.data.folder else folder
    base = start if start.is_absolute() else folder / start
    data = recipe.data.model_copy(update={"folder": str(base.resolve())})
    return recipe.model_copy(update={"data": data})


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe as YAML, presets expanded, nothing left to defaults."""
    values = recipe.model_dump(mode="json")
    values["model"]["preset"] = None
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)


def keys(part: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Every key of a recipe: dotted name, default, description."""
    for name, field in part.model_fields.items():
        inner = list(_parts_of(field.annotation))
        for kind in inner:
            if kind.__doc__ and len(inner) > 1:
                yield f"{prefix}{name}", "", " ".join(kind.__doc__.split())
            yield from keys(kind, f"{prefix}{name}.")
        if not inner and name != "kind":
            default = (
                "required"
                if field.is_required()
                else _show(field.get_default(call_default_factory=True))
            )
            yield f"{prefix}{name}", default, field.description or ""


def _show(value: Any) -> str:
    return str(yaml.safe_dump(value, default_flow_style=True)).replace("\n...", "").strip()


def _parts_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _parts_of(inner)


def _plain(node: yaml.Node, where: Keys, lines: dict[Keys, str], name: str) -> Any:
    """Plain values of a YAML node, noting the line of each key."""
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = f"{name}:{key_node.start_mark.line + 1}"
            if key in values:
                raise RecipeError(f"{line}: the key {key} stands twice; keep one of them")
            lines[*where, key] = line
            values[key] = _plain(value_node, (*where, key), lines, name)
        return values
    if isinstance(node, yaml.SequenceNode):
        return [_plain(n, (*where, i), lines, name) for i, n in enumerate(node.value)]
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(
            f"{name}:{node.start_mark.line + 1}: the value cannot be read: {error}"
        ) from None


def _apply(values: dict[str, Any], override: str, lines: dict[Keys, str]) -> None:
    """Set one dotted `key=value` of the command line."""
    dotted, equals, text = override.partition("=")
    parts = tuple(part for part in dotted.strip().split("."))
    if not equals or not all(parts):
        raise RecipeError(f"the override {override!r} is not of the form train.lr=3e-4")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    inner = values
    for depth, part in enumerate(parts[:-1]):
        lines[parts[: depth + 1]] = "on the command line"
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    lines[parts] = "on the command line"
    inner[parts[-1]] = value


def _expand_preset(values: dict[str, Any], lines: dict[Keys, str], name: str) -> None:
    model = values.get("model")
    if not isinstance(model, dict) or model.get("preset") is None:
        return
    preset = PRESETS.get(str(model["preset"]))
    if preset is None:
        near = _nearest(str(model["preset"]), PRESETS) or f"; there are {', '.join(PRESETS)}"
        raise RecipeError(
            f"{lines.get(('model', 'preset'), name)}: there is no preset {model['preset']}{near}"
        )
    values["model"] = _merge(preset, model)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`; a part of another kind replaces, it does not mix."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        if both and value.get("kind", old.get("kind")) == old.get("kind"):  # type: ignore[union-attr]
            merged[key] = _merge(old, value)  # type: ignore[arg-type]
        else:
            merged[key] = value
    return merged


def _explain(error: ValidationError, lines: dict[Keys, str], name: str) -> str:
    """All that is wrong, one sentence each."""
    return "\n".join(_sentence(detail, lines, name) for detail in error.errors())


def _sentence(detail: ErrorDetails, lines: dict[Keys, str], name: str) -> str:
    path: Keys = tuple(part for part in detail["loc"] if part not in UNION_TAGS)
    shown = ".".join(str(part) for part in path)
    known = path
    while known and known not in lines:
        known = known[:-1]
    place = lines.get(known, name)
    if detail["type"] == "extra_forbidden":
        near = _nearest(
            str(path[-1]), _siblings(detail["loc"]), prefix=".".join(map(str, path[:-1]))
        )
        return f"{place}: unknown key {shown}{near or '; `transduce recipes --keys` lists them'}"
    if detail["type"] == "missing":
        return f"{place}: the key {shown} is missing"
    if detail["type"] == "union_tag_invalid":
        kind = detail["input"].get("kind")
        return f"{place}: {shown}.kind is {kind}; it can be transformer or recurrent"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{place}: {shown + ': ' if shown else ''}{message}"
    near = ""
    if detail["type"] == "literal_error":
        choices = str(detail["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        near = _nearest(str(detail["input"]), choices) or ""
    return f"{place}: {shown} is {detail['input']!r}: {message[0].lower()}{message[1:]}{near}"


def _siblings(location: tuple[str | int, ...]) -> list[str]:
    """The keys that may stand where `location` ends."""
    kinds: list[type[BaseModel]] = [Recipe]
    for part in location[:-1]:
        if part in UNION_TAGS:
            kinds = [k for k in kinds if str(part) in k.__name__.lower()]
            continue
        fields = [k.model_fields[str(part)] for k in kinds if str(part) in k.model_fields]
        kinds = [kind for field in fields for kind in _parts_of(field.annotation)]
    return [name for kind in kinds for name in kind.model_fields]


def _nearest(word: str, choices: Iterable[str], prefix: str = "") -> str | None:
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    if not close:
        return None
    return f"; did you mean {prefix + '.' if prefix else ''}{close[0]}?"
