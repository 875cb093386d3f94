"""Source tags: `<fre> bonjour`, `<V> <PST> sing`. In the vocabulary each is one token."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

from transduce.data.text.unicode import composed

_FIRST = re.compile(r"<([^<>\s]+)>\s*")


def with_tags(source: str, tags: Iterable[str]) -> str:
    """A source that begins with tags."""
    return "".join(f"<{tag}> " for tag in tags) + source


def without_blank(sources: Iterable[str]) -> list[str]:
    """Sources as a model reads them: one of nothing but blanks is an empty one."""
    return [source if source.strip() else "" for source in sources]


def without_tags(source: str, known: Container[str]) -> tuple[list[str], str]:
    """The known tags that a source begins with, and the rest of it."""
    tags: list[str] = []
    while (found := _FIRST.match(source)) and (tag := composed(found[1])) in known:
        tags.append(tag)
        source = source[found.end() :]
    return tags, source
