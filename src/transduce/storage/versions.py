"""Which version of a file it is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Version:
    """What tells that a file is still the same: its size, and the time of its last change, or the
    ETag of an object.
    """

    size: int
    changed: str
