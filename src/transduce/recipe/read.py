"""Read a recipe from YAML or a dict, and write it back: line numbers, overrides, paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from yaml.constructor import SafeConstructor

from transduce.errors import RecipeError
from transduce.recipe.choices import used_plugins
from transduce.recipe.explain import COMMAND_LINE, KeyPath, Problems, explain, nearest
from transduce.recipe.presets import PRESETS
from transduce.recipe.recipe import Recipe
from transduce.recipe.section import Section
from transduce.registry import load_installed, load_plugins, not_loaded
from transduce.storage.remote import is_remote
from transduce.terminal import say

_INTEGER = ("tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][\d_]*)$"))
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(
        r"""[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?$
        |[-+]?\.(inf|Inf|INF)$ |\.(nan|NaN|NAN)$""",
        re.VERBOSE,
    ),
)
RECIPE = "recipe.yaml"  # in the folder of a run
MAX_BYTES = 1 << 18  # of a recipe: the parser is slow, and the longest shipped one has 4,000
QUICK_BYTES = 1 << 14  # read by libyaml: its time grows with the square of the brackets left open
MAX_VALUES = 10_000  # after expanding aliases: a few lines of them can expand to billions
MAX_DEPTH = 50
DATA = (".tsv", ".csv", ".jsonl", ".parquet", ".conllu", ".conll")
_YAML_1_1_TAGS = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:bool")


_UNREPRESENTABLE = re.compile("[\\x00\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: 3e-4 is a number; 1:30 (90 in YAML 1.1) and 2024-01-01 are text."""


class _QuickLoader(_Loader):
    """The same from events of libyaml: five times as fast."""

    def __init__(self, text: str) -> None:
        super().__init__("")
        self._events = yaml.CSafeLoader(text)

    def check_event(self, *choices: Any) -> bool:
        return bool(self._events.check_event(*choices))

    def peek_event(self) -> Any:
        return self._events.peek_event()

    def get_event(self) -> Any:
        return self._events.get_event()


class _Dumper(yaml.CSafeDumper if yaml.__with_libyaml__ else yaml.SafeDumper):  # type: ignore[misc]
    """Quotes text that any YAML parser, old or new, might read as a number."""


_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] in _YAML_1_1_TAGS]
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


def recipe_file(where: str | Path) -> Path | None:
    """The file of the recipe that a person names, which may lie in the folder of a run; None: it is
    the name of a shipped recipe. Of a file or folder here that has such a name, ./NAME is the path.
    """
    if isinstance(where, str) and where in shipped():
        return None
    path = Path(where)
    return path / RECIPE if (path / RECIPE).is_file() else path


def load_recipe(where: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A validated recipe from a YAML file, the folder of a run, or a shipped recipe's name; runs
    its plugins.

    Relative paths start at the recipe file's folder; those of a shipped recipe at the current
    folder. Raises RecipeError with file, line, key and the nearest valid key.
    """
    known = shipped()
    path = recipe_file(where)
    if path is None:
        if Path(where).exists():
            say(f"{where} is the recipe that comes with transduce; ./{where} is what lies here")
        return parse_recipe(known[str(where)], f"recipe {where}", Path.cwd(), overrides)
    try:
        with path.open("rb") as file:  # a limited read: a device file may never end
            raw = file.read(MAX_BYTES + 1)
        _check_is_no_data(path, raw)
        _check_size(len(raw), str(where))
        text = raw.decode("utf-8-sig")
    except FileNotFoundError:
        if path.suffix.lower() not in ("", ".yaml", ".yml"):  # not a recipe: data of one's own
            beside = [str(file) for file in path.parent.glob(f"*{path.suffix}")]
            near = nearest(str(where), beside)
            raise RecipeError(
                f"there is no file {where}{near or '; check its name and the folder'}"
            ) from None
        beside = [str(file) for file in path.parent.glob("*.y*ml")]
        near = nearest(str(where), [*beside, *known])
        raise RecipeError(
            f"there is no recipe file {where} and no shipped recipe of that name"
            f"{near or '; `transduce recipes` lists the shipped ones'}"
        ) from None
    except IsADirectoryError:
        raise RecipeError(
            f"{where} is a folder without a run in it; give a recipe file or a run directory"
        ) from None
    except UnicodeDecodeError:
        raise RecipeError(f"the recipe {where} is not UTF-8; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RecipeError(f"the recipe {where} cannot be read: {reason}") from None
    return parse_recipe(text, str(path), path.resolve().parent, overrides, run_plugins=True)


def read_recipe(
    given: Recipe | Mapping[str, Any] | str | Path, overrides: Iterable[str] = ()
) -> Recipe:
    """A validated recipe from a Recipe, a dict, a file or the name of a shipped recipe.

    A dict has the same keys as the YAML; relative paths in it start at the current folder. Raises
    RecipeError as for YAML.
    """
    if isinstance(given, Recipe):
        overrides = list(overrides)
        if not overrides:
            return given
        return parse_recipe(dump_recipe(given), "the recipe", Path.cwd(), overrides)
    if isinstance(given, Mapping):
        problems = Problems("the recipe")
        return _validated(_copied(given, ()), problems, Path.cwd(), overrides, run_plugins=True)
    return load_recipe(given, overrides)


def parse_recipe(
    text: str,
    name: str,
    folder: Path,
    overrides: Iterable[str] = (),
    *,
    run_plugins: bool = False,
) -> Recipe:
    """A validated recipe from YAML text; `name` is what errors call it.

    run_plugins: run the Python files that it names. Never for the recipe of a model folder, which
    may come from anywhere. Raises RecipeError, one line per problem.
    """
    problems = Problems(name)
    _check_size(len(text), name)
    return _validated(_read(text, problems), problems, folder, overrides, run_plugins)


def _validated(
    values: dict[str, Any],
    problems: Problems,
    folder: Path,
    overrides: Iterable[str],
    run_plugins: bool = False,
) -> Recipe:
    """The recipe of plain values (which are modified in place)."""
    name = problems.name
    # A preset from the command line is applied first, so that other overrides apply on top of it.
    for override in sorted(overrides, key=lambda one: not one.startswith("model.preset=")):
        _override(values, override, problems)
    if unrepresentable := sorted(set(_unrepresentable(values, ()))):
        for dotted, what in unrepresentable:
            problems.add(dotted, f"{'.'.join(dotted)} {what}")
        raise RecipeError(str(problems))
    plugins = [one for one in _listed(values.get("plugins")) if isinstance(one, str)]
    if run_plugins:
        load_plugins(folder / Path(plugin).expanduser() for plugin in plugins)
    recipe = None
    try:
        recipe = _model(values)
    except ValidationError as error:
        for path, sentence in explain(error, values):
            problems.add(path, sentence)
    if recipe is None or problems.found:
        if absent := not_loaded(plugins):
            raise RecipeError(_needs_plugins(absent))
        raise RecipeError(str(problems))
    # A recipe in Python may use what a notebook registered: its model folder names that too.
    needed = dict.fromkeys([*recipe.plugins, *used_plugins(recipe)])
    listed = {Path(one).name for one in recipe.plugins}
    more = [one for one in needed if one in recipe.plugins or one not in listed]
    recipe = recipe.model_copy(update={"plugins": more})
    return resolve_data_folder(recipe, folder, name)


def _model(values: dict[str, Any]) -> Recipe:
    """The recipe; where it is invalid, once more with the plugins of installed packages."""
    try:
        return Recipe.model_validate(values)
    except ValidationError:
        if not load_installed():
            raise
        return Recipe.model_validate(values)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _needs_plugins(plugins: Sequence[str]) -> str:
    given = " ".join(f"--plugin {plugin}" for plugin in plugins)
    return (
        f"it was made with {' and '.join(plugins)}, and code that a model folder names is never "
        f"run by itself: if you trust it, give `transduce {given}` before the command, or import "
        f"it in Python"
    )


def with_overrides(recipe: Recipe, overrides: Iterable[str], free: Sequence[str]) -> Recipe:
    """The recipe of a trained model with overrides; relative paths start at the current folder.

    Raises RecipeError for a key that is not in `free` (or below one that ends in a dot).
    """
    given = list(overrides)
    for override in given:
        key = override.partition("=")[0].strip()
        if not any(key == one or (one[-1] == "." and key.startswith(one)) for one in free):
            keys = ", ".join(one + "…" if one[-1] == "." else one for one in free)
            raise RecipeError(
                f"on the command line: {key or repr(override)} cannot be changed after training; "
                f"keys that can: {keys}"
            )
    name = "the model's recipe"
    return parse_recipe(dump_recipe(recipe), name, Path.cwd(), given) if given else recipe


def resolve_data_folder(recipe: Recipe, folder: Path, name: str = "the recipe") -> Recipe:
    """The recipe with data.folder as an absolute path, relative to `folder`. Raises RecipeError."""
    if is_remote(recipe.data.folder or ""):
        return recipe
    try:
        start = (folder / Path(recipe.data.folder or "").expanduser()).resolve()
    except RuntimeError:  # ~someone, who does not exist
        raise RecipeError(f"{name}: data.folder is {recipe.data.folder}: no such user") from None
    except OSError as error:
        raise RecipeError(f"{name}: data.folder cannot be used: {error.strerror}") from None
    data = recipe.data.model_copy(update={"folder": str(start)})
    return recipe.model_copy(update={"data": data})


def dump_recipe(recipe: Recipe) -> str:
    """The whole recipe as YAML, with every preset and default written out."""
    values = recipe.model_dump(mode="json")
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _composed(text: str) -> Any:
    """The nodes of a YAML text.

    What libyaml refuses is left to PyYAML, which says more of it; so are tabs and question marks,
    where libyaml takes what PyYAML refuses.
    """
    if yaml.__with_libyaml__ and len(text) <= QUICK_BYTES and not {"\t", "?"} & {*text}:
        with suppress(yaml.YAMLError, UnicodeError):
            return yaml.compose(text, Loader=_QuickLoader)
    return yaml.compose(text, Loader=_Loader)


def _read(text: str, problems: Problems) -> dict[str, Any]:
    name = problems.name
    try:
        node = _composed(text)
        if isinstance(node, yaml.MappingNode):
            _check_expansion(node, name)
            values: dict[str, Any] = _plain(node, (), problems)
            return values
    except yaml.YAMLError as error:
        raise RecipeError(f"{name}{_yaml_problem(error, text)}") from None
    except RecursionError:
        raise RecipeError(f"{name}: the values are nested endlessly") from None
    if node is None:
        raise RecipeError(f"{name} is empty; start from `transduce recipes pronounce`")
    kind = "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
    raise RecipeError(f"{name} holds {kind}; a recipe has keys, such as data: and model:")


def _check_is_no_data(path: Path, raw: bytes) -> None:
    """Raise RecipeError for a corpus where a recipe is needed, by its name or a tab in it."""
    suffix = Path(path.name.removesuffix(".gz").removesuffix(".xz")).suffix
    is_recipe = suffix in (".yaml", ".yml")
    if suffix in DATA or (not is_recipe and b"\t" in raw.split(b"\n", 1)[0]):
        raise RecipeError(
            f"{path} is data, not a recipe; `transduce train {path}` chooses a recipe for it, and "
            f"`transduce new {path} > my.yaml` writes one"
        )


def _check_size(size: int, name: str) -> None:
    if size > MAX_BYTES:
        raise RecipeError(
            f"{name} is larger than {MAX_BYTES >> 10} KB, too large for a recipe; "
            f"check the file name"
        )


def _check_expansion(node: yaml.Node, name: str) -> None:
    """Raise RecipeError where a document is nested too deeply, or its aliases expand too far.

    An alias is the same node object as its anchor, so each node is measured once.
    """
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(one: yaml.Node, depth: int) -> int:
        if depth > MAX_DEPTH or id(one) in open_nodes:
            how = "too deeply" if depth > MAX_DEPTH else "endlessly"
            raise RecipeError(f"{name}:{one.start_mark.line + 1}: the values are nested {how}")
        if id(one) not in sizes:
            open_nodes.add(id(one))
            below = one.value if isinstance(one, yaml.CollectionNode) else []
            if isinstance(one, yaml.MappingNode):
                below = list(chain.from_iterable(below))
            sizes[id(one)] = 1 + sum(size(part, depth + 1) for part in below)
            open_nodes.remove(id(one))
        return sizes[id(one)]

    if size(node, 0) > MAX_VALUES:
        raise RecipeError(
            f"{name}: it has more than {MAX_VALUES:,} values after expanding aliases; use fewer"
        )


def _unrepresentable(values: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys whose text has NUL or lone surrogates, or whose number does not fit in 64 bits."""
    if isinstance(values, dict):
        for key, value in values.items():
            if _UNREPRESENTABLE.search(str(key)):
                yield path or ("a key",), "has a key with NUL or a lone surrogate; remove it"
            else:
                yield from _unrepresentable(value, (*path, str(key)))
    elif isinstance(values, list):
        for value in values:
            yield from _unrepresentable(value, path)
    elif isinstance(values, str) and _UNREPRESENTABLE.search(values):
        yield path, "contains NUL or a lone surrogate, which no text file may have; remove it"
    elif isinstance(values, int) and abs(values) >= 2**63:
        yield path, f"is {values:.3g}, which does not fit in 64 bits; give a smaller number"


def _yaml_problem(error: yaml.YAMLError, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    position = getattr(error, "position", 0)  # of a character that YAML does not allow
    line = mark.line + 1 if mark else text.count("\n", 0, position) + 1
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    if mark and "'\\t'" in problem:
        problem = "there is a tab here; indent with spaces"
    return f":{line}: this is not valid YAML: {problem.removeprefix('but ')}"


def _plain(node: yaml.Node, where: KeyPath, problems: Problems) -> Any:
    """Plain values of a YAML node; records the line number of each key and item."""
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                problems.at(key_node.start_mark.line + 1, "a key must be a plain word")
                continue
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in values:
                dotted = ".".join(map(str, (*where, key)))
                problems.at(line, f"the key {dotted} occurs twice; keep one of them")
            problems.lines[*where, key] = line
            values[key] = _plain(value_node, (*where, key), problems)
        return values
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            problems.lines[*where, index] = item.start_mark.line + 1
        return [_plain(n, (*where, i), problems) for i, n in enumerate(node.value)]
    try:
        value = SafeConstructor().construct_object(node)
    except (ValueError, AttributeError, LookupError, TypeError):
        return str(node.value)  # thousands of digits, or a !!tag that does not match the text
    # 1e4 steps are 10000 steps.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _copied(value: Any, where: KeyPath) -> Any:
    """A Python value as YAML would hold it; a Section object stays as it is."""
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
        value = value.item()  # a numpy scalar
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


def _override(values: dict[str, Any], override: str, problems: Problems) -> None:
    """Set one dotted `key=value` of the command line."""
    dotted, equals, text = override.partition("=")
    parts = tuple(dotted.strip().split("."))
    if not equals or not all(parts):
        raise RecipeError(f"the override {override!r} is not of the form train.lr=3e-4")
    for depth in range(len(parts)):
        problems.lines[parts[: depth + 1]] = COMMAND_LINE
    inner = values
    for part in parts[:-1]:
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    inner[parts[-1]] = value = _value(text, parts, problems)
    if parts == ("model", "preset"):
        # The command line takes precedence: drop the file's own keys that the preset sets.
        for key in PRESETS.get(str(value), {}):
            inner.pop(key, None)


def _value(text: str, parts: KeyPath, problems: Problems) -> Any:
    """The value of an override: YAML, or else the text as it stands."""
    try:
        node = _composed(text)
        if node is not None:
            _check_expansion(node, "the command line")
        value = None if node is None else _plain(node, parts, problems)
    except yaml.YAMLError:
        value = text
    except RecursionError:
        raise RecipeError(f"{'.'.join(map(str, parts))} is nested endlessly") from None
    for path in problems.lines:
        if path[: len(parts)] == parts:
            problems.lines[path] = COMMAND_LINE
    return value
