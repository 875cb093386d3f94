"""Where the C library lies; apart from runtime, as the tokenizers use it too."""

from __future__ import annotations

import os
from pathlib import Path

_NAME = "libtransduce.dll" if os.name == "nt" else "libtransduce.so"
LIBRARY_FILE = Path(__file__).parent / "runtime" / _NAME


def is_disabled() -> bool:
    """Whether the user has turned the C library off."""
    return os.environ.get("TRANSDUCE_NATIVE") == "0"
