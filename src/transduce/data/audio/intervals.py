"""A stretch of time and what is said in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds from the beginning of a recording, and a text, which may be empty."""

    start: float
    end: float
    text: str = ""
