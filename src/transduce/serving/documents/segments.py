"""A document as segments to translate, and all that is kept around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from transduce.serving.documents.alignment import Alignment, Proportional
from transduce.serving.documents.inline import Tag, put_back
from transduce.serving.threads import check_wanted

LINE_END = re.compile(r"(\r\n|\r|\n)")
Write = Callable[[str], str]


class Segments:
    """A document cut into segments to translate, and what is kept between them."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        """The segments, without white space around them."""
        self.tags: list[list[Tag]] = []
        """The inline markup of each."""
        self._kept: list[list[str]] = [[]]
        """What is kept before each segment and after the last, in parts."""
        self.in_order = False
        """Whether inline markup must keep its order, whatever the order of the words."""
        self.size = 0
        """Characters of the segments and their markup."""
        self._write: list[Write] = []

    def keep(self, text: str) -> None:
        """What follows is this, unchanged."""
        self._kept[-1].append(text)

    def add(self, text: str, write: Write = str) -> None:
        """What follows is to be translated; `write` turns a translation into its form in the
        document, such as with entities. White space around it is kept."""
        bare = text.strip()
        if not has_words(bare):  # nothing to translate: punctuation, a dash
            self.keep(write(text))
            return
        start = text.index(bare)
        self.keep(text[:start])
        self.add_marked(bare, [], write)
        self.keep(text[start + len(bare) :])

    def add_marked(self, text: str, tags: list[Tag], write: Write, markup: int = 0) -> None:
        """The same for a text without white space around it, with inline markup of so many
        characters."""
        self.texts.append(text)
        self.tags.append(tags)
        self.size += len(text) + markup
        self._write.append(write)
        self._kept.append([])

    def join(self, translations: Iterable[str | Alignment]) -> str:
        """The document with its segments translated.

        Inline tags are placed by an alignment, or by position where there is only a text.
        """
        parts = [*self._kept[0]]
        for number, (found, tags) in enumerate(zip(translations, self.tags, strict=True)):
            write = self._write[number]
            if isinstance(found, str) and tags:
                found = Proportional(self.texts[number], found)
            if isinstance(found, str):
                parts.append(write(found))
            else:
                parts.append(put_back(tags, found, write))
            parts += self._kept[number + 1]
        return "".join(parts)


def has_words(text: str) -> bool:
    return any(c.isalnum() for c in text)


def text_segments(text: str) -> Segments:
    """Plain text: each line is a segment."""
    found = Segments()
    for number, part in enumerate(LINE_END.split(text)):
        check_wanted()
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
