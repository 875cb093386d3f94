"""The cores of this machine; apart from hardware.py, as torch must not be loaded to know them."""

from __future__ import annotations

import os


def count_cores() -> int:
    """Cores that this process may use, which may be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
