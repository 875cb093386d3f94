"""Parts of a corpus, as in `split: 80-90%`: a hash of its source decides where a row belongs."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, c_char_p, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from hashlib import blake2b

import numpy as np

from transduce.data.text.unicode import composed
from transduce.recipe.corpus import percentages
from transduce.shared_library import declared, is_disabled

PLACES = 2**64


def place_in_corpus(text: str) -> int:
    """A hash of a source, from 0 to PLACES: its order among those of a corpus, by which it is cut
    into parts."""
    known = composed(text.strip()).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(known, digest_size=8).digest(), "little")


def places_of(part: str) -> tuple[int, int]:
    """The places at which a part begins, and the next one."""
    first, last = (round(Fraction(str(end)) / 100 * PLACES) for end in percentages(part))
    return first, last


def in_part(part: str) -> Callable[[str], bool]:
    """Whether a text is in a part of its corpus, such as 80-90%: a hash decides, on every machine
    alike. Tags before a source do not matter."""
    first, last = places_of(part)
    return lambda text: first <= place_in_corpus(text) < last


@dataclass(frozen=True, slots=True)
class LinesOfPart:
    """Finds the lines of a file that can be in a part of its corpus by their bytes, several times
    faster than one by one. Some may be of other parts: `in_part` decides."""

    part: str
    column: int = -1
    """Of the sources, from 0, in a table of tabs; -1: the lines are the sources."""
    columns: int = 1
    """How many a line needs; one with fewer is found, so that its reader can say so."""
    header: str = ""
    """Lines that begin so are found too: a header is repeated where files were joined."""

    def __call__(self, block: bytes) -> tuple[int, list[int], list[str]]:
        """How many lines a block of whole lines has; the numbers from 0 and the texts of some."""
        library, lines = _library(), block.count(b"\n")
        assert library is not None
        first, last = places_of(self.part)
        head, found = self.header.encode("utf-8"), np.empty((lines, 3), np.int64)
        count = library.lines_in_part(
            *(block, len(block), self.column, self.columns, first, last - 1),
            *(head, len(head), found.ctypes.data),
        )
        rows = found[:count].tolist()
        texts = [block[start:end].decode("utf-8").removesuffix("\r") for _, start, end in rows]
        return lines, [line for line, _, _ in rows], texts


def finds_lines() -> bool:
    """Whether LinesOfPart can be used: it needs the C library."""
    return not is_disabled() and _library() is not None


@cache
def _library() -> CDLL | None:
    text = (c_char_p, c_int64)
    places = (c_int64, c_int64, c_uint64, c_uint64)
    return declared({"lines_in_part": (c_int64, *text, *places, *text, c_void_p)})
