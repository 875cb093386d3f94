"""Tokenising word by word: the ids of each word are asked of the tokenizer once, and looked up from
then on, in C (data/c/words.c).

For tokenizers that cut a text at its spaces first, so that the ids of a text are those of its
words: the result is the tokenizer's. Where the C library is missing, it reads every text.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import POINTER, c_int32, c_int64, c_uint8, c_void_p
from functools import cache
from itertools import chain, pairwise
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.shared_library import declared, is_disabled

MAX_WORDS = 1 << 19
"""That are kept, some 40 MB; then the table begins anew."""
LONGEST = 64
"""Bytes of a word that is looked up: text without spaces, as of Chinese, hardly occurs twice."""
FULL, NO_MEMORY = -1, -2

Ids = NDArray[np.int32]
Offsets = NDArray[np.int64]
Encode = Callable[[list[str]], tuple[Ids, Offsets]]
"""Texts to ids, concatenated, and the offsets of each, by the tokenizer."""


def flattened(rows: Sequence[Sequence[int]]) -> tuple[Ids, Offsets]:
    """Rows of ids, concatenated, and where each begins; with the end of the last."""
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)), out=offsets[1:])
    return np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1])), offsets


def side_by_side(ones: tuple[Ids, Offsets], twos: tuple[Ids, Offsets]) -> tuple[Ids, Offsets]:
    """Rows of one side, each followed by that of another."""
    sizes = [np.diff(offsets) for _, offsets in (ones, twos)]
    ids = np.empty(len(ones[0]) + len(twos[0]), np.int32)
    offsets = ones[1] + twos[1]
    places = np.arange(len(ids), dtype=np.int64)
    first = places - np.repeat(offsets[:-1], np.diff(offsets)) < np.repeat(sizes[0], sum(sizes))
    ids[first], ids[~first] = ones[0], twos[0]
    return ids, offsets


class WordTable:
    """The ids of the words of a tokenizer that have occurred; bounded, and safe for threads."""

    def __init__(
        self, library: ctypes.CDLL, encode: Encode, empty: bool, between: int | None
    ) -> None:
        """encode: gives the ids of texts, and so of words. empty: whether spaces may follow each
        other, or stand at an edge. between: the id of a space, of tokens that are letters.
        """
        self._library, self._encode, self._empty = library, encode, empty
        self._between = -1 if between is None else between
        self._lock = Lock()
        self._words = library.words_new(MAX_WORDS)
        if not self._words:
            raise MemoryError

    def __del__(self) -> None:
        self._library.words_free(self._words)

    def encode(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """The ids of texts, concatenated, and the offsets of each. Raises UnicodeEncodeError for
        half of a surrogate pair."""
        with self._lock:
            try:
                return self._encoded(texts)
            except BaseException:
                self._library.words_clear(self._words)  # some words may have no ids yet
                raise

    def _encoded(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        joined = "".join(texts)
        raw = joined.encode("utf-8")
        sizes: Iterable[int] = map(len, texts)
        if len(raw) != len(joined):
            sizes = (len(text.encode("utf-8")) for text in texts)
        bounds = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(sizes, np.int64, len(texts)), out=bounds[1:])
        found = np.empty(raw.count(b" ") + len(texts), np.int32)
        found_bounds = np.empty(len(texts) + 1, np.int64)
        if self._find(raw, bounds, found, found_bounds):
            alone = np.flatnonzero(found[found_bounds[:-1]] < 0).tolist()
            others = self._encode([texts[row] for row in alone])
            return self._ids(found, found_bounds, *others)
        if len(texts) == 1:
            return self._encode(list(texts))
        half = len(texts) // 2
        (ids, offsets), (more, further) = self._encoded(texts[:half]), self._encoded(texts[half:])
        return np.concatenate([ids, more]), np.concatenate([offsets, further[1:] + offsets[-1]])

    def _find(self, raw: bytes, bounds: Offsets, found: Ids, found_bounds: Offsets) -> bool:
        """The numbers of all words; new ones get their ids. False where an empty table has no
        room for all of them."""
        library, words = self._library, self._words
        known = library.words_count(words)
        where = (_place(bounds), len(bounds) - 1, LONGEST, self._empty)
        count = library.words_find(words, raw, *where, _place(found), _place(found_bounds))
        if count == FULL:
            library.words_clear(words)
            known = 0
            count = library.words_find(words, raw, *where, _place(found), _place(found_bounds))
        if count == FULL:
            library.words_clear(words)
            return False
        if count < 0:
            raise MemoryError
        if count > known:
            ids, offsets = self._encode(_names(library, words, known))
            if library.words_set(words, known, _place(ids), _place(offsets)):
                raise MemoryError
        return True

    def _ids(
        self, found: Ids, found_bounds: Offsets, others: Ids, other_bounds: Offsets
    ) -> tuple[Ids, Offsets]:
        texts = len(found_bounds) - 1
        offsets = np.empty(texts + 1, np.int64)
        known = (_place(found), _place(found_bounds), texts, _place(others), _place(other_bounds))
        count = self._library.words_ids(self._words, *known, self._between, None, _place(offsets))
        ids = np.empty(count, np.int32)
        self._library.words_ids(self._words, *known, self._between, _place(ids), _place(offsets))
        return ids, offsets


class WordCounts:
    """How often each word of texts occurs, between spaces; some words may be there twice."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._words = library.words_new(MAX_WORDS)
        if not self._words:
            raise MemoryError

    def __del__(self) -> None:
        self._library.words_free(self._words)

    def count(self, texts: Iterable[list[str]]) -> Iterator[tuple[list[str], Offsets]]:
        """Words, and how often each occurred: as many at a time as the table holds. Raises
        UnicodeEncodeError for half of a surrogate pair."""
        tally, words = self._library.words_tally, self._words
        for some in texts:
            raw = " ".join(some).encode("utf-8")
            place = tally(words, raw, 0, len(raw))
            while 0 <= place <= len(raw):  # the table is full
                yield self._counted()
                place = tally(words, raw, place, len(raw))
            if place < 0:
                raise MemoryError
        yield self._counted()

    def _counted(self) -> tuple[list[str], Offsets]:
        """What was counted so far; the table begins anew."""
        names = _names(self._library, self._words, 0)
        times = np.empty(len(names), np.int64)
        self._library.words_times(self._words, _place(times))
        self._library.words_clear(self._words)
        return names, times


def _names(library: ctypes.CDLL, words: int, first: int) -> list[str]:
    """The words of a table from a number on."""
    starts = np.empty(library.words_count(words) - first + 1, np.int64)
    place = library.words_text(words, first, _place(starts))
    letters = ctypes.string_at(place, int(starts[-1]))
    text = letters.decode("utf-8")
    if len(text) < len(letters):  # of a character, all bytes but the first continue it
        continues = (np.frombuffer(letters, np.uint8) & 0xC0) == 0x80
        starts -= np.concatenate([np.zeros(1, np.int64), np.cumsum(continues)])[starts]
    return [text[a:b] for a, b in pairwise(starts.tolist())]


def word_counts() -> WordCounts | None:
    """A table that counts words; None where the C library cannot be used."""
    library = None if is_disabled() else _library()
    return None if library is None else WordCounts(library)


def word_table(encode: Encode, empty: bool, between: int | None) -> WordTable | None:
    """A table of words; None where the C library cannot be used."""
    library = None if is_disabled() else _library()
    return None if library is None else WordTable(library, encode, empty, between)


def _place(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


@cache
def _library() -> ctypes.CDLL | None:
    functions: dict[str, tuple[Any, ...]] = {
        "words_new": (c_void_p, c_int64),
        "words_free": (None, c_void_p),
        "words_clear": (None, c_void_p),
        "words_count": (c_int64, c_void_p),
        "words_find": (
            *(c_int64, c_void_p, ctypes.c_char_p, c_void_p, c_int64, c_int64, c_int32),
            *(c_void_p, c_void_p),
        ),
        "words_tally": (c_int64, c_void_p, ctypes.c_char_p, c_int64, c_int64),
        "words_times": (None, c_void_p, c_void_p),
        "words_text": (POINTER(c_uint8), c_void_p, c_int64, c_void_p),
        "words_set": (c_int64, c_void_p, c_int64, c_void_p, c_void_p),
        "words_ids": (
            *(c_int64, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int32),
            *(c_void_p, c_void_p),
        ),
    }
    return declared(functions)
