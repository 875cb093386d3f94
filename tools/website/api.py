"""The pages of the API reference: the public names of some packages, by the module they are in."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from dataclasses import dataclass

# A package of which `__all__` is public, and the title of its page.
PACKAGES = {
    "transduce": "transduce",
    "transduce.tasks": "transduce.tasks",
    "transduce.nn": "transduce.nn",
    "transduce.models": "transduce.models",
    "transduce.lessons": "transduce.lessons",
    "transduce.errors": "transduce.errors",
}

# The names that most readers look for come first on a page; the others follow.
FIRST = {
    "transduce": ["load", "train", "build", "Model", "Transducer"],
    "transduce.tasks": ["Model", "GenerativeModel", "DecodingSettings", "Output", "Score"],
    "transduce.nn": ["MultiHeadAttention", "EncoderBlock", "DecoderBlock", "Recurrent", "LSTM"],
    "transduce.models": ["Transformer", "RecurrentSeq2Seq", "ConvolutionalSeq2Seq", "Conformer"],
}


@dataclass(frozen=True)
class Public:
    """A public name: where it is public, and where it is written."""

    package: str
    name: str
    module: str
    docstring: str | None
    """Its own, not that of a class above; None of a plain value, which has none."""


def public_names(package: str) -> list[Public]:
    """The names of a package's `__all__`; without one, its own classes and functions."""
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == package and not name.startswith("_")
    ]
    return [_public(package, name, getattr(module, name)) for name in names]


def _public(package: str, name: str, value: object) -> Public:
    if inspect.isclass(value):
        return Public(package, name, value.__module__, vars(value).get("__doc__") or "")
    if inspect.isroutine(value):
        return Public(package, name, value.__module__, value.__doc__ or "")
    return Public(package, name, package, None)


def packages() -> list[str]:
    """Those that this checkout has."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is not None]


def page(package: str) -> str:
    """The Markdown of one package; mkdocstrings puts the signatures and docstrings in."""
    first = FIRST.get(package, [])
    names = sorted(
        public_names(package),
        key=lambda one: first.index(one.name) if one.name in first else len(first),
    )
    lines = [f"# {PACKAGES[package]}", "", _introduction(package), ""]
    modules = list(dict.fromkeys(one.module for one in names))
    for module in modules:
        if len(modules) > 1:
            # Without the part that all names share: the table of contents is narrow.
            title = module.removeprefix(f"{package}.").removeprefix("transduce.")
            lines += [f"## {title}", "", _summary(module), ""]
        for one in names:
            if one.module == module:
                lines += [f"::: {package}.{one.name}", ""]
    return "\n".join(lines)


def _introduction(package: str) -> str:
    """The docstring of a package; its indented parts are code in Markdown too."""
    return inspect.cleandoc(importlib.import_module(package).__doc__ or "")


def _summary(module: str) -> str:
    return _introduction(module).split("\n\n")[0]
