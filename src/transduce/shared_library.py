"""Where the C library lies, and its functions; apart from runtime, as `data` uses it too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_NAME = "libtransduce.dll" if os.name == "nt" else "libtransduce.so"
LIBRARY_FILE = Path(__file__).parent / "runtime" / _NAME


def is_disabled() -> bool:
    """Whether the user has turned the C library off."""
    return os.environ.get("TRANSDUCE_NATIVE") == "0"


def declared(functions: Mapping[str, tuple[Any, ...]]) -> ctypes.CDLL | None:
    """The C library with some of its functions, each with the type of its result, then those of its
    arguments. None where it is missing, or of another version."""
    try:
        library = ctypes.CDLL(str(LIBRARY_FILE))
        for name, (result, *arguments) in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library
