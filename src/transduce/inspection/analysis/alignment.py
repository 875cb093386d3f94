"""Word alignments: from attention, in Pharaoh's format, and how wrong they are.

A link is a pair (source word, target word), counted from 0. A lens gives attention between tokens;
`word_attention` (decoding/word_alignment.py) makes it one between words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from transduce.errors import DataError

Link = tuple[int, int]

LINK = re.compile(r"(\d+)([-p?])(\d+)")
NEAR = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]


class Gold(NamedTuple):
    """What people say of a pair: links that must be, and links that may be."""

    sure: frozenset[Link]
    possible: frozenset[Link]
    """The sure ones among them."""


def links_of(words_TS: ArrayLike, threshold: float = 0.0) -> set[Link]:
    """For each target word the source word that it attends to most, if more than a threshold."""
    given_TS = np.asarray(words_TS, np.float64)
    if not given_TS.size:
        return set()
    best_T = given_TS.argmax(axis=1).tolist()
    return {(s, t) for t, s in enumerate(best_T) if given_TS[t, s] > threshold}


def links_back(words_TS: ArrayLike) -> set[Link]:
    """For each source word the target word that attends to it most."""
    return {(t, s) for s, t in links_of(np.asarray(words_TS).T)}


def to_pharaoh(links: Iterable[Link]) -> str:
    """Links as one line, source first: `0-0 1-2`."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def from_pharaoh(line: str, *, first: int = 0) -> Gold:
    """The links of a line; `1?2` or `1p2` are possible and not sure. first: what counting starts
    at. Raises DataError for what is no link."""
    sure, possible = set(), set()
    for text in line.split():
        found = LINK.fullmatch(text)
        if found is None or int(found[1]) < first or int(found[3]) < first:
            raise DataError(
                f"{text!r} is no link of an alignment: write source-target, counted from {first}, "
                f"such as {first}-{first + 1}, or {first}?{first + 1} where it is not sure"
            )
        link = (int(found[1]) - first, int(found[3]) - first)
        possible.add(link)
        if found[2] == "-":
            sure.add(link)
    return Gold(frozenset(sure), frozenset(possible))


def alignment_error_rate(
    predicted: Sequence[Iterable[Link]], gold: Sequence[Gold | Iterable[Link]]
) -> float:
    """AER = 1 − (|A ∩ S| + |A ∩ P|) / (|A| + |S|), over all pairs: Och and Ney 2003, section 6,
    https://aclanthology.org/J03-1002. 0 is best."""
    if len(predicted) != len(gold):
        raise ValueError(f"There are {len(predicted)} alignments, but {len(gold)} of gold.")
    hits = total = 0
    for links, right in zip(predicted, gold, strict=True):
        found = set(links)
        if not isinstance(right, Gold):
            sure = frozenset(right)
            right = Gold(sure, sure)
        hits += len(found & right.sure) + len(found & (right.sure | right.possible))
        total += len(found) + len(right.sure)
    return 1.0 - hits / total if total else 0.0


def agreement(one: Iterable[Link], other: Iterable[Link]) -> tuple[int, int]:
    """Twice the links that two have in common, and how many both have: their ratio is F1."""
    ours, theirs = set(one), set(other)
    return 2 * len(ours & theirs), len(ours) + len(theirs)


def symmetrize(
    forward: Iterable[Link],
    backward: Iterable[Link],
    method: Literal["intersection", "union", "grow-diag"] = "grow-diag",
) -> set[Link]:
    """One alignment of two, of a model and of one that translates back, both source first.

    grow-diag (Koehn et al. 2003, https://aclanthology.org/N03-1017) begins with the links of both,
    and adds those of one that touch a link and align a word that has none yet.
    """
    ours, theirs = set(forward), set(backward)
    if method == "intersection":
        return ours & theirs
    if method == "union":
        return ours | theirs
    if method != "grow-diag":
        raise ValueError(f"method must be intersection, union or grow-diag, not {method}.")
    links = ours & theirs
    waiting = sorted((ours | theirs) - links)
    grown = True
    while grown:
        grown = False
        for link in list(waiting):
            source, target = link
            touches = any((source + ds, target + dt) in links for ds, dt in NEAR)
            new = all(s != source for s, _ in links) or all(t != target for _, t in links)
            if touches and new:
                links.add(link)
                waiting.remove(link)
                grown = True
    return links
