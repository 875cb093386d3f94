"""Where the garbage collector does not run; apart from hardware, which needs torch."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Within, the garbage collector does not run: where many objects are made that stay, as when
    modules are imported, it would look through all of them again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
