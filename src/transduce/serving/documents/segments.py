"""A document as segments to translate, and all that is kept around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

LINE_END = re.compile(r"(\r\n|\r|\n)")


class Segments:
    """A document cut into segments to translate, and what is kept between them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """The segments, without white space around them."""
        self._kept: list[str] = [""]
        self._write: list[Callable[[str], str]] = []

    def keep(self, text: str) -> None:
        """What follows is this, unchanged."""
        self._kept[-1] += text

    def add(self, text: str, write: Callable[[str], str] = str) -> None:
        """What follows is to be translated; `write` turns a translation into its form in the
        document, such as with entities. White space around it is kept."""
        bare = text.strip()
        if not any(c.isalnum() for c in bare):  # nothing to translate: punctuation, a dash
            self.keep(write(text))
            return
        start = text.index(bare)
        self.keep(text[:start])
        self.texts.append(bare)
        self._write.append(write)
        self._kept.append(text[start + len(bare) :])

    def join(self, translations: Sequence[str]) -> str:
        """The document with its segments translated."""
        parts = [self._kept[0]]
        for write, text, kept in zip(self._write, translations, self._kept[1:], strict=True):
            parts += [write(text), kept]
        return "".join(parts)


def text_segments(text: str) -> Segments:
    """Plain text: each line is a segment."""
    found = Segments()
    for number, part in enumerate(LINE_END.split(text)):
        if number % 2:
            found.keep(part)
        else:
            found.add(part)
    return found


def whole_segment(text: str) -> Segments:
    """Plain text as one segment; its line breaks become spaces."""
    found = Segments()
    found.add(LINE_END.sub(" ", text))
    return found
