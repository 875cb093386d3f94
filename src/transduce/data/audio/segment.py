"""The location of audio as text: a file name, with start and end in seconds for a segment."""

from __future__ import annotations

import re
from pathlib import Path


def place_of(file: Path, start: float | None = None, end: float | None = None) -> str:
    """An audio file, or its segment from `start` to `end` in seconds, as text: a.wav#t=1.5,2.25.

    https://www.w3.org/TR/media-frags/#naming-time
    """
    if start is None and end is None:
        return str(file)
    times = [f"{seconds:.6f}".rstrip("0").rstrip(".") for seconds in (start or 0.0, end or 0.0)]
    return f"{file}#t={times[0]}" + ("" if end is None else f",{times[1]}")


_PART = re.compile(r"(?P<file>.*)#t=(?P<start>\d*\.?\d*)(?:,(?P<end>\d+\.?\d*))?", re.DOTALL)


def parse_place(source: str) -> tuple[Path, float, float | None]:
    """The file, start and end of a location that `place_of` made."""
    part = _PART.fullmatch(source)
    if part is None or part["start"] == ".":
        return Path(source), 0.0, None
    end = float(part["end"]) if part["end"] else None
    return Path(part["file"]), float(part["start"] or 0), end
