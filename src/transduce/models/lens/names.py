"""Names of parts, and patterns that select them."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


def short_name(name: str) -> str:
    """`decoder.blocks.2.cross_attention` is also `decoder.2.cross`, `encoder.recurrent.cells.0`
    also `encoder.0`."""
    name = name.replace(".blocks.", ".").replace(".recurrent.cells.", ".")
    return name.removesuffix("_attention")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a part's name, or its short one, fits any of the patterns; * stands for any text."""
    short = short_name(name)
    return any(fnmatchcase(name, one) or fnmatchcase(short, one) for one in patterns)
