"""Transcripts as SRT or WebVTT subtitles, or as a Praat TextGrid."""

from __future__ import annotations

from collections.abc import Iterator

from transduce.data.audio.intervals import (
    Interval,
    TextGrid,
    Tier,
    format_srt,
    format_textgrid,
    format_vtt,
)
from transduce.decoding.output import Output, TimedWord

FORMATS = ("srt", "vtt", "textgrid")
ENDINGS = {"srt": ".srt", "vtt": ".vtt", "textgrid": ".TextGrid"}
LETTERS = 84  # maximum characters of one subtitle: two lines
SECONDS = 7.0  # maximum duration of one subtitle


def transcript(output: Output, kind: str, seconds: float, phones: bool = False) -> str:
    """An output with times as text in one of FORMATS; `seconds`: the length of the recording."""
    if kind == "textgrid":
        return _textgrid(output, seconds, phones)
    cues = list(_cues(output))
    return format_srt(cues) if kind == "srt" else format_vtt(cues)


def _cues(output: Output) -> Iterator[Interval]:
    """One subtitle per segment; several for a long one, if its words have timestamps."""
    for segment in output.segments:
        words = [word for word in output.words if segment.start <= word.start < segment.end]
        fits = len(segment.text) <= LETTERS and segment.end - segment.start <= SECONDS
        if fits or not words:
            yield Interval(segment.start, segment.end, segment.text)
        else:
            yield from _lines(words)


def _lines(words: list[TimedWord]) -> Iterator[Interval]:
    line: list[TimedWord] = []
    for word in words:
        letters = sum(len(one.text) + 1 for one in line) + len(word.text)
        if line and (letters > LETTERS or word.end - line[0].start > SECONDS):
            yield _cue(line)
            line = []
        line.append(word)
    if line:
        yield _cue(line)


def _cue(words: list[TimedWord]) -> Interval:
    return Interval(words[0].start, words[-1].end, " ".join(word.text for word in words))


def _textgrid(output: Output, seconds: float, phones: bool) -> str:
    end = max([seconds, *(one.end for one in (*output.segments, *output.words))])
    tiers = [Tier("utterances", _without_overlap(output.segments))]
    if output.words:
        tiers.append(Tier("phones" if phones else "words", _without_overlap(output.words)))
    return format_textgrid(TextGrid(0.0, end, tuple(tiers)))


def _without_overlap(timed: list[TimedWord]) -> tuple[Interval, ...]:
    """Praat requires that intervals do not overlap."""
    found: list[Interval] = []
    for one in timed:
        start = max(one.start, found[-1].end) if found else one.start
        found.append(Interval(start, max(start, one.end), one.text))
    return tuple(found)
