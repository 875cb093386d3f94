"""Entities, such as names, as the tags of their words mark them.

Tags are B-PER at the first word of an entity and I-PER at others, O outside (IOB2; Tjong Kim Sang
2002, https://aclanthology.org/W02-2024), also IOB1 and, with E and S or L and U, BIOES and BILOU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

OUTSIDE = "O"
FIRST, LAST = frozenset("BSU"), frozenset("ESLU")
_TAG = re.compile(r"([BIESLUM])-(\S+)")


class Entity(NamedTuple):
    """Words `start` to `end`, which is not one of them."""

    start: int
    end: int
    kind: str


def mark_entities(tags: Iterable[str]) -> bool:
    """Whether all of these tags are O, or mark a word of an entity, and some do."""
    found = [tag for tag in tags if tag != OUTSIDE]
    return bool(found) and all(map(_TAG.fullmatch, found))


def entities(tags: Sequence[str]) -> set[Entity]:
    """The entities of a sentence.

    One begins at B, S or U, and at any other tag of an entity that follows another kind, an end or
    a word outside: so a prediction that begins with I is an entity, too. A tag without a prefix is
    read as I.
    """
    found = set()
    start, open_kind = 0, ""
    for place, tag in enumerate((*tags, OUTSIDE)):
        match = _TAG.fullmatch(tag)
        prefix, kind = (match[1], match[2]) if match else ("I", "" if tag == OUTSIDE else tag)
        if open_kind and (kind != open_kind or prefix in FIRST):
            found.add(Entity(start, place, open_kind))
            open_kind = ""
        if kind and not open_kind:
            start, open_kind = place, kind
        if open_kind and prefix in LAST:
            found.add(Entity(start, place + 1, open_kind))
            open_kind = ""
    return found
