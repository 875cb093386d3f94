"""An output with timestamps: its segments, and where the next window begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from transduce.data.tokens.whisper_prompt import PromptTokens


class Segment(NamedTuple):
    """Text tokens between two timestamps; seconds from the start of the window."""

    start: float
    end: float
    ids: list[int]


class Window(NamedTuple):
    """What was found in a window, and how many seconds of it are done."""

    segments: list[Segment]
    done: float


def split_at_times(ids: Sequence[int], tokens: PromptTokens, seconds: float) -> Window:
    """Cut an output at its timestamps. seconds: the length of the window.

    A segment is closed by two timestamps in a row, its end and the next one's start. If an output
    ends in such a pair, or within a segment after one, the next window begins where the last closed
    segment ends; otherwise the window is done (Radford et al. 2022, section 3.8).
    """
    places = [
        place
        for place in range(1, len(ids))
        if tokens.is_time(ids[place - 1]) and tokens.is_time(ids[place])
    ]
    single = len(ids) >= 2 and tokens.is_time(ids[-1]) and not tokens.is_time(ids[-2])
    if not places:
        times = [number for number in ids if tokens.is_time(number)]
        start = tokens.seconds(times[0]) if times else 0.0
        end = seconds
        if times and times[-1] != tokens.first_timestamp and len(times) > 1:
            end = min(tokens.seconds(times[-1]), seconds)
        text = tokens.text(ids)
        return Window([Segment(min(start, end), end, text)] if text else [], seconds)
    cuts = [*places, len(ids)] if single else places
    segments, before = [], 0
    for cut in cuts:
        part = ids[before:cut]
        before = cut
        text = tokens.text(part)
        start, end = tokens.seconds(part[0]), tokens.seconds(part[-1])
        if text and end > start:
            segments.append(Segment(min(start, seconds), min(end, seconds), text))
    if single:
        return Window(segments, seconds)
    done = tokens.seconds(ids[cuts[-1] - 1])
    return Window(segments, min(done, seconds) if done > 0 else seconds)
