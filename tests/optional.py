"""Packages that some tests need, imported when a test first uses them.

Each process of the tests collects every file, and would import what stands at the top of any.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest


class WhenUsed:
    """A module that is imported when first asked for anything public: pytest asks all for more."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


def package(name: str) -> Any:
    """The package, imported when used; the file's tests are skipped where it is not installed."""
    skip_without(name)
    return WhenUsed(name)


def skip_without(*names: str) -> None:
    """Skip a file of tests where one of these packages is not installed; none is imported."""
    for name in names:
        if find_spec(name) is None:
            pytest.skip(f"needs the package {name}", allow_module_level=True)
