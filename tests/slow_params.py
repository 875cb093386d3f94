"""Parameters of a test of which only some are tried each time; the others by `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_slow(values: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow) for value in values
    ]
