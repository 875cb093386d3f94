"""Subtitle files: SubRip (.srt) and WebVTT (.vtt)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from transduce.data.audio.intervals import Interval

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
