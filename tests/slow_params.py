"""Parameters of a test of which only some are tried each time; the others by `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_slow(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """All values; those that are not quick are slow. A tuple has the values of several names."""
    return [value if value in quick else _slow(value) for value in values]


def _slow(value: Any) -> Any:
    several = value if isinstance(value, tuple) else (value,)
    return pytest.param(*several, marks=pytest.mark.slow)
