"""Text with inline markup, such as <b>: translated as a whole, then the tags are put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transduce.serving.documents.alignment import Alignment
from transduce.serving.threads import check_wanted


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
