"""Text with inline markup, such as <b>: translated as a whole, then the tags are put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from transduce.serving.documents.alignment import Alignment


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


def put_back(tags: Sequence[Tag], alignment: Alignment, write: Callable[[str], str]) -> str:
    """The translation with its tags around the words that belong to those of the source.

    Tags are never lost and stay nested as they were; the order of neighbours may change, as that of
    words does. write: escapes text.
    """
    return _render(tags, alignment, write, (0, len(alignment.target)))


def _render(
    tags: Sequence[Tag],
    alignment: Alignment,
    write: Callable[[str], str],
    bounds: tuple[int, int],
) -> str:
    low, high = bounds
    placed = []
    for number, tag in enumerate(tags):
        if tag.is_element:
            first, last = alignment.find(tag.start, tag.end)
        else:
            first = last = alignment.find(0, tag.start)[1] if tag.start else 0
        placed.append((min(max(first, low), high), number, min(max(last, low), high), tag))
    parts: list[str] = []
    place = low
    for first, _, last, tag in sorted(placed, key=lambda one: one[:2]):
        first = max(first, place)  # neighbours do not overlap
        last = max(last, first)
        parts.append(write(alignment.target[place:first]))
        if tag.is_element:
            inner = _render(tag.inside, alignment, write, (first, last))
            parts.append(f"{tag.open}{inner}{tag.close}")
        else:
            parts.append(" " * (tag.spaced and first > low) + tag.open)
        place = last
    parts.append(write(alignment.target[place:high]))
    return "".join(parts)
