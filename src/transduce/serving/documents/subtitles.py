"""Subtitles, SubRip (.srt) and WebVTT (.vtt): the text of cues is translated, all else is kept."""

from __future__ import annotations

import re
import textwrap
from bisect import bisect_left
from collections.abc import Callable, Iterator
from html import escape, unescape

from transduce.serving.documents.segments import LINE_END, Segments
from transduce.serving.threads import check_wanted

TIMES = re.compile(r"^\s*[\d:.,]+\s*-->\s*[\d:.,]+")
TAGS = re.compile(r"(<[^<>]*>|\{\\[^{}]*\})")  # <i>, <v Zuko>, {\an8}
WIDTH = 42  # characters of a line of subtitles, as broadcasters have it


def srt_segments(source: str) -> Segments:
    """SubRip; characters are written as they are."""
    return _segments(source, str, str)


def vtt_segments(source: str) -> Segments:
    """WebVTT; &, < and > are character references."""
    return _segments(source, unescape, lambda text: escape(text, quote=False))


def _segments(
    source: str,
    read: Callable[[str], str],
    write: Callable[[str], str],
) -> Segments:
    found = Segments()
    for block in _blocks(source):
        check_wanted()
        place = next((n for n, line in enumerate(block) if TIMES.match(line)), None)
        if place is None:  # a header, a note, a style sheet, empty lines
            found.keep("".join(block))
            continue
        found.keep("".join(block[: place + 1]))
        _cue(found, block[place + 1 :], read, write)
    return found


def _blocks(source: str) -> Iterator[list[str]]:
    """Lines with their ends, in blocks that end with their empty lines."""
    parts = LINE_END.split(source)
    lines = [text + end for text, end in zip(parts[::2], [*parts[1::2], ""], strict=True)]
    block: list[str] = []
    ended = False
    for line in lines:
        if line.strip() and ended:
            yield block
            block, ended = [], False
        block.append(line)
        ended = not line.strip()
    yield block


def _cue(
    found: Segments,
    lines: list[str],
    read: Callable[[str], str],
    write: Callable[[str], str],
) -> None:
    """Lines of a cue are one sentence, broken for the screen; lines that begin with a dash are
    what several people say, one each."""
    filled = [line for line in lines if line.strip()]
    if not filled:
        found.keep("".join(lines))
        return
    by_line = all(line.lstrip().startswith(("-", "–", "—")) for line in filled)
    # Tags within a text: where its lines would end is not known, so they stay as they are.
    by_line |= sum(1 for part in TAGS.split(" ".join(filled))[::2] if part.strip()) > 1
    spoken = [[line] for line in filled] if by_line else [filled]
    for group in spoken:
        text = group[-1].rstrip("\r\n")
        end = group[-1][len(text) :]
        text = " ".join([*(line.rstrip("\r\n").strip() for line in group[:-1]), text.strip()])
        line_end = group[0][len(group[0].rstrip("\r\n")) :] or "\n"

        def wrapped(translation: str, rows: int = len(group), line_end: str = line_end) -> str:
            return line_end.join(wrap(write(translation), rows))

        for number, part in enumerate(TAGS.split(text)):
            if number % 2:
                found.keep(part)
                continue
            dash = re.match(r"\s*[-–—]\s*", part) if number == 0 else None
            found.keep(dash.group() if dash else "")
            rest = part[dash.end() :] if dash else part
            found.add(read(rest), wrapped)
        found.keep(end)
    found.keep("".join(lines[len(filled) :]))


def wrap(text: str, rows: int) -> list[str]:
    """A text in at most so many lines of about equal length; fewer if it is short."""

    def lines(width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False)

    def minimum(rows: int, narrow: int, wide: int) -> int:
        """The least width that needs no more rows: it is never more at a greater width."""
        return bisect_left(range(narrow, wide), -rows, key=lambda n: -len(lines(n))) + narrow

    width = minimum(rows, max(WIDTH, -(-len(text) // rows)), len(text))
    count = len(lines(width))
    if count > 1:  # balanced
        width = minimum(count, -(-len(text) // count), width)
    return lines(width) or [text]
