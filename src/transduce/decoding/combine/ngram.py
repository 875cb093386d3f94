"""n-gram language models in ARPA form, as SRILM, KenLM and others write them.

log p(w | h) is that of the n-gram h w where the file has it; otherwise the back-off weight of h and
log p(w | h without its first word). A file has log₁₀; all values here are natural logarithms.

The n-grams of one order are a sorted array of numbers (the place of the n-gram's first words among
those of the order below, and its last word), so that a million of them take about 16 MB.
"""

from __future__ import annotations

import gzip
import math
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from transduce.errors import DataError

BEGIN_WORD, END_WORD, UNKNOWN_WORDS = "<s>", "</s>", ("<unk>", "<UNK>")
SUFFIXES = (".arpa", ".arpa.gz", ".lm", ".lm.gz")
"""The names of files that are taken for n-gram models."""
MAX_ORDER = 10
LOG_10 = math.log(10)
KNOWN_CONTEXTS = 4096  # whose distributions are remembered
KNOWN_PARTS = 100_000  # of words, whose bounds are remembered

Lines = Iterator[tuple[int, str]]
"""The lines of a file, with their numbers."""
Context = tuple[int, ...]
"""The words before, as numbers, at most order - 1 of them."""


def is_arpa(path: Path) -> bool:
    """Whether a path is that of an n-gram model, by its name."""
    return path.name.lower().endswith(SUFFIXES) and not path.is_dir()


def arpa_name(path: Path) -> str:
    """The name of an n-gram model: that of its file, without .arpa or .arpa.gz."""
    suffix = max((one for one in SUFFIXES if path.name.lower().endswith(one)), key=len, default="")
    return path.name[: len(path.name) - len(suffix)]


class Grams(NamedTuple):
    """The n-grams of one order."""

    keys: NDArray[np.int64]
    """Sorted: context x words + last word."""
    log_probs: NDArray[np.float32]
    back_offs: NDArray[np.float32]


class NgramModel:
    """An n-gram language model of words, or of tokens."""

    def __init__(self, words: dict[str, int], orders: Sequence[Grams], name: str = "") -> None:
        """words: their numbers, which are their places among the 1-grams."""
        self.words, self.orders, self.name = words, list(orders), name
        self.order = len(orders)
        unknown = next((words[one] for one in UNKNOWN_WORDS if one in words), None)
        self.unknown = unknown
        """The number of <unk>, if the file has it."""
        # Without <unk>, what the model does not know is as likely as its rarest word.
        said = [n for word, n in words.items() if word != BEGIN_WORD]
        self.floor = float(orders[0].log_probs[said].min()) if said else 0.0
        """log p of such words."""
        self.begin: Context = (words[BEGIN_WORD],) if BEGIN_WORD in words and self.order > 1 else ()
        self._distributions: dict[Context, NDArray[np.float32]] = {}

    @classmethod
    def load(cls, path: str | Path) -> NgramModel:
        """Read an ARPA file, also compressed with gzip. Raises DataError, with the line."""
        return _Reader(Path(path)).read()

    def number(self, word: str) -> int | None:
        """The number of a word: as it is written, without punctuation around it, or in lower or
        upper case; that of <unk>, or None, where the model does not know it."""
        bare = word.strip("".join(letter for letter in set(word) if not letter.isalnum()))
        for form in (word, bare, bare.lower(), bare.upper()):
            if form in self.words:
                return self.words[form]
        return self.unknown

    def log_probability(self, context: Context, word: int | None) -> float:
        """Of a word, None being one that the model does not know, after others."""
        if word is None:
            return self.floor
        total = 0.0
        for first in range(len(context) + 1):
            before = context[first:]
            place = self._place((*before, word))
            grams = self.orders[len(before)]
            if place is not None:
                return total + float(grams.log_probs[place])
            at = self._place(before)
            if at is not None:
                total += float(self.orders[len(before) - 1].back_offs[at])
        raise AssertionError("every word is a 1-gram")

    def distribution(self, context: Context) -> NDArray[np.float32]:
        """log p of each word after others."""
        known = self._distributions.get(context)
        if known is not None:
            return known
        if not context:
            found = self.orders[0].log_probs
        else:
            found = self.distribution(context[1:])
            at = self._place(context)
            if at is not None:
                size, grams = len(self.words), self.orders[len(context)]
                found = found + self.orders[len(context) - 1].back_offs[at]
                start, end = np.searchsorted(grams.keys, [at * size, (at + 1) * size])
                found[grams.keys[start:end] - at * size] = grams.log_probs[start:end]
        if len(self._distributions) >= KNOWN_CONTEXTS:
            self._distributions.clear()
        self._distributions[context] = found
        return found

    def best_log_probs(self) -> NDArray[np.float32]:
        """The highest log p that each word has in any context of the file."""
        found = self.orders[0].log_probs.copy()
        for grams in self.orders[1:]:
            np.maximum.at(found, grams.keys % len(self.words), grams.log_probs)
        return found

    @cached_property
    def bounds(self) -> WordBounds:
        """Made at the first use, for all that decode with the model."""
        return WordBounds(self)

    def after(self, context: Context, word: int | None) -> Context:
        """The context of the next word. A word that is not known hides what was before it."""
        if word is None:
            return ()
        return (*context, word)[max(0, len(context) + 2 - self.order) :] if self.order > 1 else ()

    def _place(self, gram: Context) -> int | None:
        """Where an n-gram stands among those of its order; None where it is not there."""
        if not gram:
            return None
        place = gram[0]
        for depth, word in enumerate(gram[1:], start=1):
            keys, key = self.orders[depth].keys, place * len(self.words) + word
            place = int(np.searchsorted(keys, key))
            if place == len(keys) or keys[place] != key:
                return None
        return place


class WordBounds:
    """How likely a word may be of which the beginning is known. Threads may share it."""

    def __init__(self, model: NgramModel) -> None:
        best = model.best_log_probs()
        unknown = model.unknown
        self.unknown = model.floor if unknown is None else float(best[unknown])
        """Of one that the model does not know."""
        pairs = sorted((word.lower(), number) for word, number in model.words.items())
        self._words = [word for word, _ in pairs]
        self._best = best[[number for _, number in pairs]]
        self._known: dict[str, float] = {}

    def of(self, part: str) -> float:
        """The highest log p of the words that begin so, of unknown ones too; zero for nothing."""
        known = self._known.get(part)
        if known is None:
            text = part.lower().lstrip(_marks(part))
            start, end = self._range(text)
            if start == end:  # punctuation after a word is no part of it
                text = text.rstrip(_marks(part))
                start, end = self._range(text)
            best = float(self._best[start:end].max()) if end > start else self.unknown
            if len(self._known) >= KNOWN_PARTS:
                self._known.clear()
            self._known[part] = known = max(self.unknown, best) if text else 0.0
        return known

    def following(self, part: str, texts: Collection[str], longest: int) -> set[str]:
        """Those of the texts, of so many letters at most, with which a known word goes on."""
        text = part.lower().lstrip(_marks(part))
        start, end = self._range(text)
        if end - start > len(texts):
            return {one for one in texts if len(set(self._range(text + one))) == 2}
        rests = (word[len(text) : len(text) + longest] for word in self._words[start:end])
        prefixes = {rest[:length] for rest in rests for length in range(1, len(rest) + 1)}
        return prefixes & set(texts)

    def _range(self, text: str) -> tuple[int, int]:
        """The places of the words that begin with a text."""
        return bisect_left(self._words, text), bisect_left(self._words, text + chr(0x10FFFF))


def _marks(text: str) -> str:
    return "".join(letter for letter in set(text) if not letter.isalnum())


class _Reader:
    """Reads a file; `line` is the number of the line that is being read."""

    def __init__(self, path: Path) -> None:
        self.path, self.line = path, 0
        self.following = ""
        """The line that ended the last section."""

    def read(self) -> NgramModel:
        try:
            with _opened(self.path) as lines:
                return self._read(enumerate(lines, start=1))
        except FileNotFoundError:
            raise DataError(f"there is no language model {self.path}") from None
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise DataError(
                f"{self.path}:{self.line + 1}: cannot be read ({error}); it must be an ARPA file "
                f"in UTF-8, plain or compressed with gzip"
            ) from None

    def _read(self, lines: Lines) -> NgramModel:
        counts = self._counts(lines)
        words: dict[str, int] = {}
        orders: list[Grams] = []
        for order, count in enumerate(counts, start=1):
            orders.append(self._section(lines, order, count, words, orders))
            wanted = f"\\{order + 1}-grams:" if order < len(counts) else "\\end\\"
            if self.following != wanted:
                raise self._wrong(self.following, wanted)
        return NgramModel(words, orders, self.path.name)

    def _counts(self, lines: Lines) -> list[int]:
        r"""The number of n-grams of each order, of the head; the line `\1-grams:` is read."""
        for self.line, line in lines:
            if line.strip() == "\\data\\":
                break
        else:
            raise DataError(f"{self.path}: no line is \\data\\, so it is no ARPA file")
        counts: list[int] = []
        for self.line, line in lines:
            text = line.strip()
            if not text:
                continue
            if text == "\\1-grams:" and counts:
                return counts
            name, _, count = text.removeprefix("ngram ").partition("=")
            if name.strip() != str(len(counts) + 1) or not count.strip().isdecimal():
                raise self._wrong(
                    text, f"the number of n-grams, as in ngram {len(counts) + 1}=1000"
                )
            if len(counts) == MAX_ORDER:
                raise self._wrong(text, f"an order of at most {MAX_ORDER}")
            counts.append(int(count))
        raise self._wrong("the end of the file", "the line \\1-grams:")

    def _section(
        self,
        lines: Lines,
        order: int,
        count: int,
        words: dict[str, int],
        below: Sequence[Grams],
    ) -> Grams:
        """The n-grams of an order, and the line after them."""
        first, log_probs, back_offs, ids = self.line, array("f"), array("f"), array("i")
        places = array("i")  # the line of each
        self.following = "\\end\\"
        for self.line, line in lines:
            parts = line.split()
            if len(parts) not in (order + 1, order + 2):
                if not parts:
                    continue
                if parts[0].startswith("\\") and len(parts) == 1:
                    self.following = parts[0]
                    break
                raise self._wrong(
                    line.strip(), f"log p, {order} words and perhaps a back-off weight"
                )
            try:
                log_probs.append(float(parts[0]))
                back_offs.append(float(parts[-1]) if len(parts) == order + 2 else 0.0)
                if order > 1:
                    ids.extend([words[word] for word in parts[1 : order + 1]])
                elif parts[1] in words:
                    raise self._wrong(parts[1], "a word that is not there yet")
                else:
                    words[parts[1]] = len(words)
            except ValueError:
                raise self._wrong(line.strip(), "log p, a number, before the words") from None
            except KeyError as error:
                raise self._wrong(str(error.args[0]), "a word of the 1-grams") from None
            places.append(self.line)
        if len(log_probs) != count:
            raise DataError(
                f"{self.path}:{first}: there are {len(log_probs):,} {order}-grams, but the head "
                f"says {count:,}; the file is cut off or damaged"
            )
        values = [LOG_10 * np.frombuffer(one, np.float32) for one in (log_probs, back_offs)]
        right = np.isfinite(values[0]) & np.isfinite(values[1]) & (values[0] < 1e-3)
        if not right.all():
            self.line = places[int(np.argmin(right))]
            raise self._wrong("a number", "the logarithm of a probability, finite and at most 0,")
        if order == 1:
            return Grams(np.arange(count, dtype=np.int64), *values)
        grams = np.frombuffer(ids, np.int32).reshape(-1, order).astype(np.int64)
        return self._sorted(grams, values, below, len(words), places)

    def _sorted(
        self,
        grams: NDArray[np.int64],
        values: list[NDArray[np.float32]],
        below: Sequence[Grams],
        size: int,
        places: array[int],
    ) -> Grams:
        at = grams[:, 0]
        for depth in range(1, grams.shape[1] - 1):
            keys, wanted = below[depth].keys, at * size + grams[:, depth]
            at = np.searchsorted(keys, wanted)
            there = keys[np.minimum(at, len(keys) - 1)] == wanted if len(keys) else at < 0
            if not there.all():
                self.line = places[int(np.argmin(there))]
                raise self._wrong(
                    f"a {grams.shape[1]}-gram", "one whose first words are an n-gram before it"
                )
        keys = at * size + grams[:, -1]
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        twice = np.flatnonzero(keys[1:] == keys[:-1])
        if len(twice):
            self.line = places[int(order[twice[0] + 1])]
            raise self._wrong("an n-gram that was there before", "each n-gram once")
        return Grams(keys, values[0][order], values[1][order])

    def _wrong(self, found: str, wanted: str) -> DataError:
        return DataError(f"{self.path}:{self.line}: {found[:60]!r} stands where {wanted} must be")


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8")
