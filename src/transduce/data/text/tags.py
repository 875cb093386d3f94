"""Source tags: `<fre> bonjour`, `<V> <PST> sing`. In the vocabulary each is one token.

Several in one cell, or in one `--tag`, are separated by semicolons, bars or white space: V;PST. In
brackets these belong to the tag, as in the features of UniMorph: N;ABL(PL;PSS(2,PL)) is two tags.
A vocabulary may have the parts of tags that are joined, IN+ESS (data.split_tags).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable

from transduce.data.text.unicode import composed
from transduce.errors import DataError
from transduce.recipe import InvalidValue, nearest, plain_tag

UNKNOWN_TAG = "?"
"""The tag in place of those that training does not have, where a model knows it."""
_FIRST = re.compile(r"<([^<>\s]+)>\s*")
_SEPARATOR = re.compile(r"[;|\s]+")
_OPENING, _CLOSING = "([{", ")]}"
_JOINT = re.compile(r"(?<=[^+])\+(?=[^+])")


def split_tags(text: str) -> list[str]:
    """The tags of a cell, split outside brackets; everywhere if the brackets do not match."""
    if not closes(text):
        return _split_everywhere(text)
    tags, depth = [""], 0
    for sign in text:
        depth += (sign in _OPENING) - (sign in _CLOSING)
        if _SEPARATOR.match(sign):
            if depth and not sign.isspace():
                tags[-1] += sign
            elif not depth:
                tags.append("")
        else:
            tags[-1] += sign
    return [tag for tag in tags if tag]


def tags_in(
    cell: str, file: str, line: int, known: Collection[str] | None = None
) -> tuple[str, ...]:
    """The tags of a cell of a table, as training reads them. Raises DataError.

    known: the tags of a model that is to read them.
    """
    try:
        tags = tuple(plain_tag(tag) for tag in split_tags(cell))
    except InvalidValue as misfit:
        raise DataError(f"{file}:{line}: the tag {misfit.message}") from None
    if known is not None and (why := unreadable_tag(tags, known)):
        raise DataError(f"{file}:{line}: {why}")
    return tags


def unreadable_tag(tags: Iterable[str], known: Collection[str]) -> str:
    """Why a model with these tags cannot read others, which would be text; empty: it can, also
    where it knows UNKNOWN_TAG."""
    strange = (one for one in tags if known_tags(one, known) is None)
    first = None if UNKNOWN_TAG in known else next(strange, None)
    return "" if first is None else unknown_tag(first, known)


def unknown_tag(given: str, known: Collection[str]) -> str:
    """What is said of a tag, or of the first of several in one, that a model does not know."""
    parts = split_tags(given) or [given]
    strange = next((tag for tag in parts if known_tags(tag, known) is None), given)
    if not known:
        return f"the model was trained without tags, so {strange} is unknown; leave it out"
    seen = [one for one in known if one != UNKNOWN_TAG]
    near = nearest(strange, seen, f"; its tags are {', '.join(seen[:20])}")
    return f"the model has no tag {strange}{near}"


def closes(text: str) -> bool:
    """Whether each bracket is closed by one of its kind."""
    waiting: list[str] = []
    for sign in text:
        if sign in _OPENING:
            waiting.append(_CLOSING[_OPENING.index(sign)])
        elif sign in _CLOSING and (not waiting or waiting.pop() != sign):
            return False
    return not waiting


def parts_of(tag: str) -> list[str]:
    """The values that a feature joins: IN+ESS is IN and ESS. C++ is one, and so are brackets."""
    whole = any(sign in tag for sign in _OPENING + _CLOSING)
    return [tag] if whole else _JOINT.split(tag)


def known_tags(text: str, known: Container[str]) -> list[str] | None:
    """The tags of a cell as a model knows them; None where it does not know one of them.

    With data.split_tags it knows the parts of tags. Models of earlier versions have tags that were
    split inside brackets too.
    """
    for split in (_as_it_is, split_tags, _split_into_parts, _split_everywhere):
        found = [composed(tag) for tag in split(text)]
        if found and all(tag in known for tag in found):
            return found
    return None


def _as_it_is(text: str) -> list[str]:
    return [text]


def _split_into_parts(text: str) -> list[str]:
    return [part for tag in split_tags(text) for part in parts_of(tag)]


def _split_everywhere(text: str) -> list[str]:
    return [tag for tag in _SEPARATOR.split(text) if tag]


def with_tags(source: str, tags: Iterable[str]) -> str:
    """A source that begins with tags."""
    return "".join(f"<{word}> " for tag in tags for word in tag.split()) + source


def without_blank(sources: Iterable[str]) -> list[str]:
    """Sources as a model reads them: one of nothing but blanks is an empty one."""
    return [source if source.strip() else "" for source in sources]


def _known_parts(tag: str, known: Container[str]) -> list[str]:
    """The parts of a tag of which a model does not know all; UNKNOWN_TAG for the others."""
    parts = [part if part in known else UNKNOWN_TAG for part in map(composed, parts_of(tag))]
    return parts if set(parts) != {UNKNOWN_TAG} else [UNKNOWN_TAG]


def without_tags(source: str, known: Container[str]) -> tuple[list[str], str]:
    """The known tags that a source begins with, and the rest of it.

    Where UNKNOWN_TAG is known, it stands for each tag that is not.
    """
    tags: list[str] = []
    while found := _FIRST.match(source):
        several = known_tags(found[1], known)
        if several is None and UNKNOWN_TAG in known:
            several = [
                one
                for tag in split_tags(found[1]) or [found[1]]
                for one in known_tags(tag, known) or _known_parts(tag, known)
            ]
        if not several:
            break
        tags += several
        source = source[found.end() :]
    return tags, source
