"""From YAML to a recipe and back: line numbers, presets, overrides, paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from transduce.errors import RecipeError
from transduce.recipe.explain import COMMAND_LINE, Complaints, Dotted, explain, nearest
from transduce.recipe.presets import PRESETS
from transduce.recipe.recipe import Recipe
from transduce.recipe.section import Section

_INTEGER = ("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][\d_]*)$"))
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(
        r"""[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$
        |[-+]?\.(inf|Inf|INF)$ |\.(nan|NaN|NAN)$""",
        re.VERBOSE,
    ),
)
MOST_BYTES = 1 << 18  # of a recipe: the parser is slow, and the longest shipped one has 4,000
MOST_VALUES = 10_000  # with what aliases stand for: a few lines of them can mean billions
DEEPEST = 50
_AS_IN_1_1 = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:bool")


_UNFIT = re.compile("[\\x00\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """YAML as people write it: 3e-4 is a number, 1:30 (in YAML 1.1: 90) and 2024-01-01 are text."""


class _Dumper(yaml.SafeDumper):
    """Puts quotes around text that any reader of YAML, old or new, might take for a number."""


_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] in _AS_IN_1_1]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in (_INTEGER, _FLOAT):
    _Loader.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
    _Dumper.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))


def shipped() -> dict[str, str]:
    """The recipes that come with transduce: name to YAML text."""
    folder = resources.files("transduce.recipe") / "shipped"
    files = [file for file in folder.iterdir() if file.name.endswith(".yaml")]
    found = {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}
    return dict(sorted(found.items()))  # by name: a recipe before its -lstm and -small


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
        with path.open("rb") as file:  # a device has no size, and no end
            raw = file.read(MOST_BYTES + 1)
        _check_size(len(raw), str(where))
        text = raw.decode("utf-8-sig")
    except FileNotFoundError:
        beside = [str(file) for file in path.parent.glob("*.y*ml")]
        near = nearest(str(where), [*beside, *known])
        raise RecipeError(
            f"there is no recipe file {where} and no shipped recipe of that name"
            f"{near or '; `transduce recipes` lists the shipped ones'}"
        ) from None
    except IsADirectoryError:
        raise RecipeError(
            f"{where} is a folder without a run in it; name a recipe file, or a folder under runs/"
        ) from None
    except UnicodeDecodeError:
        raise RecipeError(f"the recipe {where} is not UTF-8; save it as such") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"the recipe {where} cannot be read: {reason}") from None
    return parse_recipe(text, str(where), path.resolve().parent, overrides)


def read_recipe(
    given: Recipe | Mapping[str, Any] | str | Path, overrides: Iterable[str] = ()
) -> Recipe:
    """A validated recipe from whatever Python has: a recipe, a dict, a file or a shipped name.

    A dict has the keys that the YAML has; relative paths in it start at the current folder. Raises
    RecipeError as for YAML.
    """
    if isinstance(given, Recipe):
        overrides = list(overrides)
        if not overrides:
            return given
        return parse_recipe(dump_recipe(given), "the recipe", Path.cwd(), overrides)
    if isinstance(given, Mapping):
        complaints = Complaints("the recipe")
        return _validated(_copied(given, ()), complaints, Path.cwd(), overrides)
    return load_recipe(given, overrides)


def parse_recipe(text: str, name: str, folder: Path, overrides: Iterable[str] = ()) -> Recipe:
    """A validated recipe from YAML text; `name` is what errors call it.

    Raises RecipeError, one line for each thing that is wrong.
    """
    complaints = Complaints(name)
    _check_size(len(text), name)
    return _validated(_read(text, complaints), complaints, folder, overrides)


def _validated(
    values: dict[str, Any], complaints: Complaints, folder: Path, overrides: Iterable[str]
) -> Recipe:
    """The recipe of plain values, which are changed on the way."""
    name = complaints.name
    # A preset of the command line first: what else stands there goes on top of it.
    for override in sorted(overrides, key=lambda one: not one.startswith("model.preset=")):
        _override(values, override, complaints)
    if unfit := sorted(set(_unfit(values, ()))):
        for dotted, what in unfit:
            complaints.add(dotted, f"{'.'.join(dotted)} {what}")
        raise RecipeError(str(complaints))
    recipe = None
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        explain(error, values, complaints)
    if recipe is None or complaints.found:
        raise RecipeError(str(complaints))
    return placed(recipe, folder, name)


def with_overrides(recipe: Recipe, overrides: Iterable[str], free: Sequence[str]) -> Recipe:
    """The recipe of a trained model with some keys set anew; relative paths start here.

    Raises RecipeError for a key that is not among `free` (or below one that ends in a dot).
    """
    given = list(overrides)
    for override in given:
        key = override.partition("=")[0].strip()
        if not any(key == one or (one[-1] == "." and key.startswith(one)) for one in free):
            keys = ", ".join(one + "…" if one[-1] == "." else one for one in free)
            raise RecipeError(
                f"on the command line: {key or repr(override)} is settled once a model is trained; "
                f"what can be set here: {keys}"
            )
    name = "the model's recipe"
    return parse_recipe(dump_recipe(recipe), name, Path.cwd(), given) if given else recipe


def placed(recipe: Recipe, folder: Path, name: str = "the recipe") -> Recipe:
    """The recipe with data.folder in full, starting at `folder`. Raises RecipeError."""
    try:
        start = (folder / Path(recipe.data.folder or "").expanduser()).resolve()
    except RuntimeError:  # ~someone, who is not there
        raise RecipeError(f"{name}: data.folder is {recipe.data.folder}: no such user") from None
    except OSError as error:
        raise RecipeError(f"{name}: data.folder cannot be used: {error.strerror}") from None
    data = recipe.data.model_copy(update={"folder": str(start)})
    return recipe.model_copy(update={"data": data})


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe as YAML, nothing left to presets or defaults; parse_recipe reads it back."""
    values = recipe.model_dump(mode="json")
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _read(text: str, complaints: Complaints) -> dict[str, Any]:
    name = complaints.name
    try:
        node = yaml.compose(text, Loader=_Loader)
        if isinstance(node, yaml.MappingNode):
            _check_expansion(node, name)
            values: dict[str, Any] = _plain(node, (), complaints)
            return values
    except yaml.YAMLError as error:
        raise RecipeError(f"{name}{_yaml_problem(error, text)}") from None
    except RecursionError:
        raise RecipeError(f"{name}: the values are nested without end") from None
    if node is None:
        raise RecipeError(f"{name} is empty; start from `transduce recipes pronounce`")
    kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
    raise RecipeError(f"{name}: this is {kind}; a recipe has keys, such as data: and model:")


def _check_size(size: int, name: str) -> None:
    if size > MOST_BYTES:
        raise RecipeError(
            f"{name} has more than {MOST_BYTES >> 10} KB, which no recipe has; is it another file?"
        )


def _check_expansion(node: yaml.Node, name: str) -> None:
    """Raise RecipeError where a document is nested too deeply, or its aliases stand for too much.

    An alias is the very node that it stands for: sizes are found once for each node.
    """
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(one: yaml.Node, depth: int) -> int:
        if depth > DEEPEST or id(one) in open_nodes:
            how = "too deeply" if depth > DEEPEST else "without end"
            raise RecipeError(f"{name}:{one.start_mark.line + 1}: the values are nested {how}")
        if id(one) not in sizes:
            open_nodes.add(id(one))
            below = one.value if isinstance(one, yaml.CollectionNode) else []
            if isinstance(one, yaml.MappingNode):
                below = list(chain.from_iterable(below))
            sizes[id(one)] = 1 + sum(size(part, depth + 1) for part in below)
            open_nodes.remove(id(one))
        return sizes[id(one)]

    if size(node, 0) > MOST_VALUES:
        raise RecipeError(
            f"{name}: with its aliases it has more than {MOST_VALUES:,} values; write fewer"
        )


def _unfit(values: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where a text holds what no file name or file can have, or a number is no computer's."""
    if isinstance(values, dict):
        for key, value in values.items():
            if _UNFIT.search(str(key)):
                yield path or ("a key",), "has a key with a character that cannot be: mend it"
            else:
                yield from _unfit(value, (*path, str(key)))
    elif isinstance(values, list):
        for value in values:
            yield from _unfit(value, path)
    elif isinstance(values, str) and _UNFIT.search(values):
        yield path, "holds NUL or half of a surrogate pair, which no text may have; leave it out"
    elif isinstance(values, int) and abs(values) >= 2**63:
        yield path, f"is {values:.3g}, which is larger than any number that can be counted to"


def _yaml_problem(error: yaml.YAMLError, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    position = getattr(error, "position", 0)  # of a character that may not be in YAML at all
    line = mark.line + 1 if mark else text.count("\n", 0, position) + 1
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    if mark and "'\\t'" in problem:
        problem = "there is a tab here; indent with spaces"
    return f":{line}: this is not valid YAML: {problem.removeprefix('but ')}"


def _plain(node: yaml.Node, where: Dotted, complaints: Complaints) -> Any:
    """Plain values of a YAML node, noting the line of each key and item."""
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                complaints.at(key_node.start_mark.line + 1, "a key must be a plain word")
                continue
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in values:
                dotted = ".".join(map(str, (*where, key)))
                complaints.at(line, f"the key {dotted} stands twice; keep one of them")
            complaints.lines[*where, key] = line
            values[key] = _plain(value_node, (*where, key), complaints)
        return values
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            complaints.lines[*where, index] = item.start_mark.line + 1
        return [_plain(n, (*where, i), complaints) for i, n in enumerate(node.value)]
    try:
        value = _Loader("").construct_object(node)
    except (ValueError, AttributeError, LookupError, TypeError):
        return str(node.value)  # thousands of digits, or a !!tag of what the text is not
    # 1e4 steps are 10000 steps.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _copied(value: Any, where: Dotted) -> Any:
    """A value of Python as YAML would have it; a part that is built already stays as it is."""
    dotted = ".".join(map(str, where))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise RecipeError(
                    f"the recipe: the key {key!r} {f'in {dotted} ' * bool(dotted)}"
                    f"is not text; keys are words such as data and model"
                )
        return {key: _copied(inner, (*where, key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(inner, (*where, index)) for index, inner in enumerate(value)]
    if hasattr(value, "item") and not isinstance(value, Section):
        value = value.item()  # a number of numpy
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, str | int | Section):
        return value
    raise RecipeError(
        f"the recipe: {dotted} is a {type(value).__name__}; a recipe holds text, numbers, true or "
        f"false, lists and keys"
    )


def _override(values: dict[str, Any], override: str, complaints: Complaints) -> None:
    """Set one dotted `key=value` of the command line."""
    dotted, equals, text = override.partition("=")
    parts = tuple(dotted.strip().split("."))
    if not equals or not all(parts):
        raise RecipeError(f"the override {override!r} is not of the form train.lr=3e-4")
    for depth in range(len(parts)):
        complaints.lines[parts[: depth + 1]] = COMMAND_LINE
    inner = values
    for part in parts[:-1]:
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    inner[parts[-1]] = value = _value(text, parts, complaints)
    if parts == ("model", "preset"):
        # It was asked for later than the file was written: the file's own shape gives way.
        for key in PRESETS.get(str(value), {}):
            inner.pop(key, None)


def _value(text: str, parts: Dotted, complaints: Complaints) -> Any:
    """The value of an override: YAML, or else the text as it stands."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _check_expansion(node, "the command line")
        value = None if node is None else _plain(node, parts, complaints)
    except yaml.YAMLError:
        value = text
    except RecursionError:
        raise RecipeError(f"{'.'.join(map(str, parts))} is nested without end") from None
    for path in complaints.lines:
        if path[: len(parts)] == parts:
            complaints.lines[path] = COMMAND_LINE
    return value
