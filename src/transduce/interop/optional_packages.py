"""Optional packages of the engines, imported only when needed."""

from __future__ import annotations

import importlib
from typing import Any

from transduce.errors import ModelError


def load_package(name: str, extra: str) -> Any:
    """Import a package of an extra; ModelError says how to install it.

    Never at the top of a file: CTranslate2 has its own OpenMP, which takes the cores from torch's
    as soon as it is loaded.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModelError(
            f"this needs the package {name}, which cannot be loaded here ({error}): "
            f"pip install '.[{extra}]'"
        ) from None
