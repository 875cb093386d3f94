"""Real weights of other toolkits, where a machine has them; tests without them are skipped."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest


def real_weights(name: str) -> Path:
    """The folder `name`: in one of $TRANSDUCE_WEIGHTS, in shared/data beside a checkout, or an
    installed package of this name.
    """
    given = [Path(one) for one in os.environ.get("TRANSDUCE_WEIGHTS", "").split(os.pathsep) if one]
    beside = [parent / "shared" / "data" for parent in Path(__file__).resolve().parents]
    for folder in (*given, *beside):
        if (folder / name).is_dir():
            return folder / name
    package = importlib.util.find_spec(name) if name.isidentifier() else None
    if package is None or package.origin is None:
        pytest.skip(f"the weights {name} are in no folder of TRANSDUCE_WEIGHTS")
    return Path(package.origin).parent
