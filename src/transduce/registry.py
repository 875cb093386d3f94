"""Parts of your own, by name: what a plugin registers, a recipe can ask for.

    from transduce import register

    @register.metric("first_letter")
    def first_letter(hypothesis: str, references: list[str]) -> float:
        return 100.0 * any(hypothesis[:1] == reference[:1] for reference in references)

A plugin is a Python file that a recipe names (`plugins: [my_metrics.py]`) or that `--plugin` names,
or a module of an installed package with an entry point in the group `transduce.plugins`.
docs/guides/extending.md says what each kind of part has to be.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from transduce.errors import PluginError

ENTRY_POINTS = "transduce.plugins"
VARIABLE = "TRANSDUCE_PLUGINS"
_NAME = re.compile(r"[A-Za-z][\w+-]*")

Part = TypeVar("Part", bound=Callable[..., Any])


@dataclass(frozen=True)
class Registered:
    """A part, where it comes from, and the options that it was registered with."""

    part: Callable[..., Any]
    origin: str
    """The file name of a plugin, or the name of a module."""
    options: Mapping[str, Any] = field(default_factory=dict)


class Registry(Mapping[str, Registered]):
    """The parts of one kind by name, and the decorator that adds one."""

    def __init__(self, kind: str, options: tuple[str, ...] = ()) -> None:
        self.kind, self._options = kind, options
        self._parts: dict[str, Registered] = {}
        self.built_in: frozenset[str] = frozenset()
        """Names that are taken; the recipe sets them."""

    def __call__(self, name: str, **options: Any) -> Callable[[Part], Part]:
        """Register a class or function under a name. Raises PluginError for a name that cannot be.

        A part of the same module may be registered again, as when a notebook's cell is run twice.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise PluginError(
                f"{self._named(name)} cannot be registered: a name begins with a letter and has "
                f"letters, digits, _, - and +"
            )
        if name in self.built_in:
            raise PluginError(f"{self._named(name)} is built in; choose another name")
        if unknown := sorted(set(options) - set(self._options)):
            known = f"; it takes {', '.join(self._options)}" if self._options else ""
            raise PluginError(f"register.{self.kind} takes no {unknown[0]}{known}")

        def keep(part: Part) -> Part:
            if not callable(part):
                raise PluginError(f"{self._named(name)} is neither a class nor a function")
            origin = _loading[-1] if _loading else str(getattr(part, "__module__", "?"))
            before = self._parts.get(name)
            if before is not None and before.origin != origin:
                raise PluginError(
                    f"{self._named(name)} is registered twice, by {before.origin} and by {origin}; "
                    f"rename one of them"
                )
            self._parts[name] = Registered(part, origin, options)
            for changed in register.listeners:
                changed()
            return part

        return keep

    def _named(self, name: str) -> str:
        return f"the {self.kind.replace('_', ' ')} {name!r}"

    def __getitem__(self, name: str) -> Registered:
        try:
            return self._parts[name]
        except KeyError:
            near = difflib.get_close_matches(name, self._parts, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PluginError(f"{self._named(name)} is not registered{hint}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def remove(self, name: str) -> None:
        """Forget a part, such as one of a test."""
        del self._parts[name]
        for changed in register.listeners:
            changed()


@dataclass(frozen=True)
class Register:
    """What can be registered; each is a decorator that takes a name."""

    encoder: Registry = field(default_factory=lambda: Registry("encoder"))
    decoder: Registry = field(default_factory=lambda: Registry("decoder"))
    attention_score: Registry = field(default_factory=lambda: Registry("attention_score"))
    positions: Registry = field(default_factory=lambda: Registry("positions"))
    metric: Registry = field(default_factory=lambda: Registry("metric", ("higher_is_better",)))
    tokenizer: Registry = field(default_factory=lambda: Registry("tokenizer", ("join",)))
    optimizer: Registry = field(default_factory=lambda: Registry("optimizer"))
    importer: Registry = field(default_factory=lambda: Registry("importer"))
    listeners: list[Callable[[], None]] = field(default_factory=list, repr=False)
    """Called after each change: the recipe's choices follow."""

    @property
    def registries(self) -> list[Registry]:
        return [one for one in vars(self).values() if isinstance(one, Registry)]


register = Register()
_loading: list[str] = []
"""The names of the plugins that are being run."""
_modules: dict[Path, ModuleType] = {}
_installed: list[str] = []
"""The groups of entry points that have been imported."""


def load_plugin(path: str | Path) -> ModuleType:
    """Run a plugin file, once in a process, so that what it registers is known.

    Raises PluginError where it cannot be read, or with the line where it failed.
    """
    where = Path(path).expanduser().resolve()
    if where in _modules:
        return _modules[where]
    if where.suffix != ".py" or not where.is_file():
        kind = "is not a file that ends in .py" if where.exists() else "does not exist"
        raise PluginError(f"the plugin {path} {kind}; give a Python file")
    name = f"transduce_plugin_{where.stem}"
    spec = importlib.util.spec_from_file_location(name, where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = sys.modules.get(name)
    sys.modules[name] = module  # before it runs: dataclasses look their module up
    with _running(where.name):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before
            if isinstance(error, PluginError):
                raise
            raise PluginError(f"the plugin {path} failed{_line(error, where)}") from error
    _modules[where] = module
    return module


def load_plugins(paths: Iterable[str | Path]) -> None:
    """Run each plugin file. Raises PluginError."""
    for path in paths:
        load_plugin(path)


def load_installed() -> bool:
    """Import the plugins of installed packages, once; whether there was anything new.

    Their entry points are looked up only when a recipe has a name that nothing else knows, as this
    takes a while on a machine with many packages. Raises PluginError for a plugin that fails.
    """
    if _installed:
        return False
    _installed.append(ENTRY_POINTS)
    from importlib import metadata  # fifty modules, which `--help` does without

    found = list(metadata.entry_points(group=ENTRY_POINTS))
    for point in found:
        package = point.dist.name if point.dist else point.value
        with _running(package):
            try:
                point.load()
            except PluginError:
                raise
            except Exception as error:
                raise PluginError(
                    f"the plugin {point.name} of the installed package {package} failed: {error}; "
                    f"mend or uninstall the package"
                ) from error
    return bool(found)


def not_loaded(plugins: Iterable[str]) -> list[str]:
    """The file names of those plugins that have neither been run nor registered anything."""
    known = {path.name for path in _modules}
    known |= {part.origin for one in register.registries for part in one.values()}
    names = dict.fromkeys(Path(plugin).name for plugin in plugins)
    return [name for name in names if name not in known]


def load_from_environment() -> None:
    """Run the plugins that TRANSDUCE_PLUGINS names. Raises PluginError."""
    load_plugins(filter(None, os.environ.get(VARIABLE, "").split(os.pathsep)))


def pass_to_children(paths: Iterable[str | Path]) -> None:
    """Name plugins in TRANSDUCE_PLUGINS, for the processes that this one starts."""
    before = os.environ.get(VARIABLE, "").split(os.pathsep)
    full = [str(Path(path).expanduser().resolve()) for path in paths]
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(filter(None, [*before, *full])))


@contextmanager
def _running(origin: str) -> Iterator[None]:
    """What is registered within comes from `origin`; of a plugin that fails, nothing stays."""
    before = [(one, dict(one._parts)) for one in register.registries]
    _loading.append(origin)
    try:
        yield
    except BaseException:
        for registry, parts in before:
            registry._parts = parts
        for changed in register.listeners:
            changed()
        raise
    finally:
        _loading.pop()


def _line(error: BaseException, where: Path) -> str:
    """` in line 12: NameError: ...` of the last line of the plugin that was running."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == where
    ]
    if isinstance(error, SyntaxError) and error.filename == str(where):
        lines.append(error.lineno)
    place = f" in line {lines[-1]}" if lines else ""
    return f"{place}: {type(error).__name__}: {error}"
