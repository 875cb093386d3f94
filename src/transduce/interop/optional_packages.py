"""The engines' packages, loaded only when somebody asks for them."""

from __future__ import annotations

import importlib
from typing import Any

from transduce.errors import ModelError


def load_package(name: str, extra: str) -> Any:
    """A package of an extra; ModelError with the line that installs it.

    Never at the top of a file: CTranslate2 brings an OpenMP of its own, which would take the cores
    from torch's as soon as it is loaded.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ModelError(
            f"this needs the package {name}, which cannot be loaded here ({error}): "
            f"pip install 'transduce[{extra}]'"
        ) from None
