"""A document as segments to translate, and all that is kept around them: also the inline markup,
such as <b>, of a text that is translated as a whole, whose tags are put back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from transduce.decoding.word_alignment import Alignment, Proportional
from transduce.serving.threads import check_wanted

LINE_END = re.compile(r"(\r\n|\r|\n)")
Write = Callable[[str], str]


@dataclass
class Tag:
    """Markup at a place of the text. An element has `close`, and what is inside it."""

    start: int
    open: str
    end: int = -1
    close: str = ""
    inside: list[Tag] = field(default_factory=list)
    spaced: bool = False
    """Whether there was white space before markup that stands alone, such as an image."""

    @property
    def is_element(self) -> bool:
        return bool(self.close)


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


def put_back(
    tags: Sequence[Tag],
    alignment: Alignment,
    write: Callable[[str], str],
) -> str:
    """The translation with its tags around the words that belong to those of the source.

    Tags are never lost and stay nested as they were; the order of neighbours may change, as that of
    words does. write: escapes text.
    """
    target = alignment.target
    parts: list[str] = []
    open_levels = [_Level.of(tags, alignment, 0, len(target))]
    while open_levels:  # no recursion: elements may be nested as deep as the source has them
        check_wanted()
        level = open_levels[-1]
        if not level.waiting:
            parts += [write(target[level.place : level.end]), level.close]
            open_levels.pop()
            continue
        first, last, tag = level.waiting.pop()
        first = max(first, level.place)  # neighbours do not overlap
        last = max(last, first)
        parts.append(write(target[level.place : first]))
        level.place = last
        if tag.is_element:
            parts.append(tag.open)
            open_levels.append(_Level.of(tag.inside, alignment, first, last, tag.close))
        else:
            parts.append(" " * (tag.spaced and first > level.start) + tag.open)
    return "".join(parts)


@dataclass
class _Level:
    """The translation of an element, which is being written."""

    start: int
    end: int
    place: int
    """What comes before it is written."""
    close: str
    waiting: list[tuple[int, int, Tag]]
    """Tags with their places in the translation, the next one last."""

    @classmethod
    def of(
        cls, tags: Sequence[Tag], alignment: Alignment, start: int, end: int, close: str = ""
    ) -> _Level:
        placed = []
        for tag in tags:
            if tag.is_element:
                first, last = alignment.find(tag.start, tag.end)
            else:
                first = last = alignment.find(0, tag.start)[1] if tag.start else 0
            placed.append((min(max(first, start), end), min(max(last, start), end), tag))
        placed.sort(key=lambda one: one[0])  # those of one place stay in their order
        return cls(start, end, start, close, placed[::-1])
