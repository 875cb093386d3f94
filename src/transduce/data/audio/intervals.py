"""A time interval of a recording and its text (a segment of a transcript)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds from the beginning of a recording, and a text, which may be empty."""

    start: float
    end: float
    text: str = ""
