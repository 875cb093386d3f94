"""Intervals of a recording with a text each, and files of them: TextGrids and subtitles."""

from __future__ import annotations

import codecs
import html
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from transduce.errors import DataError

# ----------------------------------------------------------------------------------------------
# A time interval of a recording and its text (a segment of a transcript).


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds from the beginning of a recording, and a text, which may be empty."""

    start: float
    end: float
    text: str = ""


# ----------------------------------------------------------------------------------------------
# Subtitle files: SubRip (.srt) and WebVTT (.vtt).

# Line separators of some players, one or several together.
_BREAKS = re.compile("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]+")


def format_srt(intervals: Iterable[Interval]) -> str:
    """SubRip. It cannot represent "-->" in a text, which becomes "→"; other markup stays."""
    cues = []
    for number, interval in enumerate(_cues(intervals), start=1):
        times = f"{_clock(interval.start, ',')} --> {_clock(interval.end, ',')}"
        cues.append(f"{number}\n{times}\n{interval.text.replace('-->', '→')}\n")
    return "\n".join(cues)


def format_vtt(intervals: Iterable[Interval]) -> str:
    """WebVTT, with &, < and > escaped. https://www.w3.org/TR/webvtt1/"""
    cues = ["WEBVTT\n"]
    for interval in _cues(intervals):
        times = f"{_clock(interval.start, '.')} --> {_clock(interval.end, '.')}"
        cues.append(f"{times}\n{html.escape(interval.text, quote=False)}\n")
    return "\n".join(cues)


def _cues(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals with a text in order of time, without empty lines, which would end a cue."""
    found = []
    for interval in sorted(intervals, key=lambda interval: (interval.start, interval.end)):
        lines = (line.strip() for line in _BREAKS.split(interval.text.replace("\0", "\ufffd")))
        text = "\n".join(line for line in lines if line)
        if text:
            # A cue needs a duration: players drop those without.
            end = max(interval.end, interval.start + 0.001)
            found.append(Interval(interval.start, end, text))
    return found


def _clock(seconds: float, point: str) -> str:
    milliseconds = max(0, round(seconds * 1000))
    minutes, milliseconds = divmod(milliseconds, 60_000)
    return (
        f"{minutes // 60:02}:{minutes % 60:02}:{milliseconds // 1000:02}"
        f"{point}{milliseconds % 1000:03}"
    )


# ----------------------------------------------------------------------------------------------
# Praat's TextGrid: tiers of intervals with a text each, over one recording.
#
# https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html

# Praat parses only free-standing numbers, strings and flags; all else, such as names and brackets,
# is for people. So one parser reads both the long and the short form.
_TOKEN = re.compile(
    r"""(?:^|(?<=\s)) (?:
        (?P<comment> ![^\n]*)
      | "(?P<string> (?:[^"]|"")*)"
      | (?P<number> [-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)%?
      | <(?P<flag> exists|absent)>
    ) (?=\s|$)""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Tier:
    name: str
    intervals: tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class TextGrid:
    start: float
    end: float
    tiers: tuple[Tier, ...]

    def tier(self, name: str) -> Tier | None:
        return next((tier for tier in self.tiers if tier.name == name), None)


def read_textgrid(path: Path | str) -> TextGrid:
    """A TextGrid in the long or short text form, UTF-8 or UTF-16. Raises DataError."""
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = raw.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8 or UTF-16: save it again as one") from None
    return parse_textgrid(text, str(path))


def parse_textgrid(text: str, name: str) -> TextGrid:
    """Parse a TextGrid; `name` is what errors call it. Point tiers are left out."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    tokens = _Tokens(text, name)
    if tokens.next_string() != "ooTextFile" or tokens.next_string() != "TextGrid":
        raise DataError(f"{name} is not a TextGrid in text form: save it from Praat as text")
    start, end = tokens.next_number(), tokens.next_number()
    tiers = []
    if tokens.next_flag() == "exists":
        for _ in range(tokens.next_count()):
            tier = _next_tier(tokens)
            if tier is not None:
                tiers.append(tier)
    return TextGrid(start, end, tuple(tiers))


def format_textgrid(grid: TextGrid) -> str:
    """The long text form. Praat allows no gaps, so they become intervals with an empty text.

    Raises DataError where intervals of a tier overlap or leave the grid.
    """
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        f"xmin = {_number(grid.start)} ",
        f"xmax = {_number(grid.end)} ",
        "tiers? <exists> ",
        f"size = {len(grid.tiers)} ",
        "item []: ",
    ]
    for number, tier in enumerate(grid.tiers, start=1):
        intervals = list(_without_gaps(tier, grid))
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier" ',
            f"        name = {_quoted(tier.name)} ",
            f"        xmin = {_number(grid.start)} ",
            f"        xmax = {_number(grid.end)} ",
            f"        intervals: size = {len(intervals)} ",
        ]
        for place, interval in enumerate(intervals, start=1):
            lines += [
                f"        intervals [{place}]:",
                f"            xmin = {_number(interval.start)} ",
                f"            xmax = {_number(interval.end)} ",
                f"            text = {_quoted(interval.text)} ",
            ]
    return "\n".join(lines) + "\n"


SEGMENTS = "seg"


def numbered_lines(grid: TextGrid, lines: Sequence[str], name: str) -> list[tuple[int, Interval]]:
    """The tier `seg`: each label is the number, from 1, of the line that is read there.

    Each with the interval and text of its line; one may occur twice. Empty labels are silence.
    Raises DataError, with the time, for a label that is not such a number.
    """
    tier = grid.tier(SEGMENTS)
    if tier is None:
        there = ", ".join(tier.name for tier in grid.tiers) or "none"
        raise DataError(f"{name} has no tier named {SEGMENTS}; its tiers: {there}")
    found = []
    for interval in tier.intervals:
        label = interval.text.strip()
        if not label:
            continue
        if not label.isdecimal() or not 1 <= int(label) <= len(lines):
            raise DataError(
                f"{name}: the label {label!r} at {interval.start:.2f} s is not the number of one "
                f"of the {len(lines)} lines"
            )
        number = int(label)
        found.append((number, Interval(interval.start, interval.end, lines[number - 1])))
    return found


def number_grid(stretches: Iterable[tuple[float, float, int]], end: float) -> TextGrid:
    """A grid with one tier `seg`, of segments (start, end, line number)."""
    intervals = tuple(Interval(start, stop, str(line)) for start, stop, line in stretches)
    return TextGrid(0.0, end, (Tier(SEGMENTS, intervals),))


class _Tokens:
    """Numbers, strings and flags, in order."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name
        self.tokens = (match for match in _TOKEN.finditer(text) if match["comment"] is None)

    def _next(self, kind: str, what: str) -> str:
        match = next(self.tokens, None)
        if match is None:
            raise DataError(f"{self.name} is truncated: it ends where {what} should follow")
        if match[kind] is None:
            line = self.text.count("\n", 0, match.start()) + 1
            raise DataError(f"{self.name}:{line}: {what} should stand here, not {match[0]}")
        return match[kind]

    def next_string(self) -> str:
        return self._next("string", "a text in quotes").replace('""', '"')

    def next_number(self) -> float:
        return float(self._next("number", "a number"))

    def next_count(self) -> int:
        count = self.next_number()
        if count < 0 or not count.is_integer():
            raise DataError(f"{self.name}: {count:g} cannot be a number of tiers or intervals")
        return int(count)

    def next_flag(self) -> str:
        return self._next("flag", "<exists> or <absent>")


def _next_tier(tokens: _Tokens) -> Tier | None:
    kind, name = tokens.next_string(), tokens.next_string()
    tokens.next_number(), tokens.next_number()
    if kind not in ("IntervalTier", "TextTier"):
        raise DataError(f"{tokens.name}: the tier {name} is of a kind unknown to Praat: {kind}")
    intervals = []
    for _ in range(tokens.next_count()):
        start = tokens.next_number()
        end = tokens.next_number() if kind == "IntervalTier" else start
        if end < start:
            raise DataError(
                f"{tokens.name}: in the tier {name} an interval ends at {end:g} s, before it "
                f"begins at {start:g} s"
            )
        intervals.append(Interval(start, end, tokens.next_string()))
    return Tier(name, tuple(intervals)) if kind == "IntervalTier" else None


def _without_gaps(tier: Tier, grid: TextGrid) -> Iterator[Interval]:
    reached = grid.start
    for interval in tier.intervals:
        if not reached <= interval.start <= interval.end <= grid.end:
            raise DataError(
                f"in the tier {tier.name} the interval from {interval.start:g} to "
                f"{interval.end:g} s overlaps the one before it or leaves the recording"
            )
        if interval.start > reached:
            yield Interval(reached, interval.start)
        yield interval
        reached = interval.end
    if reached < grid.end or not tier.intervals:
        yield Interval(reached, grid.end)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise DataError(f"a TextGrid cannot hold the time {value}")
    return repr(int(value)) if float(value).is_integer() else repr(float(value))
