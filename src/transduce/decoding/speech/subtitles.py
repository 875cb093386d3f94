"""What was heard, as other programs read it: subtitles, and Praat's TextGrid."""

from __future__ import annotations

from collections.abc import Iterator

from transduce.data.audio.intervals import Interval
from transduce.data.audio.subtitles import format_srt, format_vtt
from transduce.data.audio.textgrid import TextGrid, Tier, format_textgrid
from transduce.decoding.output import Output, TimedWord

FORMATS = ("srt", "vtt", "textgrid")
ENDINGS = {"srt": ".srt", "vtt": ".vtt", "textgrid": ".TextGrid"}
LETTERS = 84  # of one subtitle: two lines
SECONDS = 7.0  # that it stays


def transcript(output: Output, kind: str, seconds: float, phones: bool = False) -> str:
    """An output with times as text of one of FORMATS; `seconds` is how long the recording is."""
    if kind == "textgrid":
        return _textgrid(output, seconds, phones)
    cues = list(_cues(output))
    return format_srt(cues) if kind == "srt" else format_vtt(cues)


def _cues(output: Output) -> Iterator[Interval]:
    """A subtitle for each stretch; for a long one several, where its words have times."""
    for stretch in output.stretches:
        words = [word for word in output.words if stretch.start <= word.start < stretch.end]
        fits = len(stretch.text) <= LETTERS and stretch.end - stretch.start <= SECONDS
        if fits or not words:
            yield Interval(stretch.start, stretch.end, stretch.text)
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
    end = max([seconds, *(one.end for one in (*output.stretches, *output.words))])
    tiers = [Tier("utterances", _apart(output.stretches))]
    if output.words:
        tiers.append(Tier("phones" if phones else "words", _apart(output.words)))
    return format_textgrid(TextGrid(0.0, end, tuple(tiers)))


def _apart(spoken: list[TimedWord]) -> tuple[Interval, ...]:
    """Praat wants that none begins before the one before it has ended."""
    found: list[Interval] = []
    for one in spoken:
        start = max(one.start, found[-1].end) if found else one.start
        found.append(Interval(start, max(start, one.end), one.text))
    return tuple(found)
