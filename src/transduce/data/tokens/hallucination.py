"""Hallucinated pairs: the stem that source and target share is replaced by invented letters.

Of `walk → walked` the longest common substring, walk, is the stem: `tosp → tosped` teaches that a
stem is copied whatever it is, and what its endings are (Anastasopoulos & Neubig 2019,
https://aclanthology.org/D19-1091). Invented stems of syllable-like substrings of training words
are closer to real ones than random letters (Liu & Hulden 2021,
https://arxiv.org/abs/2104.06483). Either teaches that endings do not depend on the stem, which is
wrong where they do: Hungarian has házban, but kézben. So some letters of the stem beside them can
be kept. Which pairs are replaced, and by what, differs in each epoch. It works on ids alone, keeps
the lengths, and is deterministic for a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from unicodedata import category

import numpy as np
from numpy.typing import NDArray

from transduce import recipe
from transduce.data.cache.tokenised import Encoded
from transduce.data.text.tags import UNKNOWN_TAG
from transduce.data.tokens.subword_regularization import Vary
from transduce.data.tokens.tokenizer import SPECIALS, Tokens

SHORTEST = 3  # letters of a stem
SUBSTRINGS = (2, 3, 4)  # letters
LOOKED_AT = 2000  # pairs, to say how many have a stem
AT_ONCE = 4096  # pairs whose stems are looked for together

Ids = NDArray[np.int32]


def hallucinating(data: recipe.Data, source_tokens: Tokens, target_tokens: Tokens) -> Vary | None:
    """The function that replaces stems of a corpus as a recipe asks; None if it does not."""
    asked = data.hallucination
    if asked is None:
        return None
    letters = Letters.of(source_tokens, target_tokens)

    def vary(encoded: Encoded, random: np.random.Generator) -> Encoded:
        return hallucinate(encoded, letters, asked, random)

    return vary


def stems_in_words(data: recipe.Data, encoded: Encoded, tokens: tuple[Tokens, Tokens]) -> str:
    """How many pairs have a stem, for people; "" where no stems are replaced."""
    if data.hallucination is None or not data.hallucination.share:
        return ""
    rows = np.linspace(0, len(encoded) - 1, min(len(encoded), LOOKED_AT)).astype(np.int64)
    share = float((stems_of(encoded, rows, Letters.of(*tokens)).lengths > 0).mean())
    if not share:
        return (
            f"warning: no source shares {SHORTEST} letters in a row with its target, so "
            f"data.hallucination changes nothing; leave it out"
        )
    replaced = data.hallucination.share
    return f"{share:.0%} of the pairs have a stem; {replaced:.0%} of these get another in an epoch."


@dataclass(frozen=True)
class Letters:
    """What the tokens of the source are, and how the target writes them; by source id.

    The last entry stands for all ids beyond the vocabulary, which models that copy have.
    """

    kinds: list[str]
    """Of each: its Unicode category; another sign takes its place only if it is of the same."""
    is_tag_V: NDArray[np.bool_]
    unknown_tag: int | None
    """The id of UNKNOWN_TAG, where the source has it."""
    usable_V: NDArray[np.bool_]
    """Letters and marks of letters that the target has too."""
    continues_V: NDArray[np.bool_]
    """Signs that belong to the letter before them: marks, vowels and finals of Hangul."""
    in_target_V: Ids
    """Its id in the target; -1: it has none."""
    in_source_V: Ids
    """Of each target id, that of the source."""

    @classmethod
    def of(cls, source: Tokens, target: Tokens) -> Letters:
        names, written = source.names(), target.names()
        numbers = {name: number for number, name in enumerate(written)}
        tags = set(source.tags.values())
        plain = [number >= len(SPECIALS) and number not in tags for number in range(len(names))]
        there = [numbers.get(name, -1) if ok else -1 for name, ok in zip(names, plain, strict=True)]
        in_target = np.array([*there, -1], np.int32)
        in_source = np.full(len(written) + 1, -1, np.int32)
        known = np.flatnonzero(in_target >= 0)
        in_source[in_target[known]] = known
        kinds = [kind_of(name) if ok else "" for name, ok in zip(names, plain, strict=True)]
        kinds.append("")
        usable = np.array([kind[:1] in ("L", "M") for kind in kinds])
        return cls(
            kinds,
            np.isin(np.arange(len(kinds)), list(tags)),
            source.tags.get(UNKNOWN_TAG),
            usable & (in_target >= 0),
            np.array([kind[:1] == "M" or kind in JAMO.values() for kind in kinds]),
            in_target,
            in_source,
        )

    def known(self, encoded: Encoded) -> Encoded:
        """The corpus with the last id in place of those beyond the vocabularies."""
        arrays = {
            "source_ids": np.minimum(encoded.source_ids, len(self.in_target_V) - 1),
            "target_ids": np.minimum(encoded.target_ids, len(self.in_source_V) - 1),
        }
        return type(encoded)(**{**vars(encoded), **arrays})


JAMO = {"V": "Lo vowel", "T": "Lo final"}


def kind_of(sign: str) -> str:
    """The Unicode category of a character, with the place in the syllable of a Hangul letter."""
    if len(sign) != 1:
        return ""
    if "\u1160" <= sign <= "\u11a7":
        return JAMO["V"]
    if "\u11a8" <= sign <= "\u11ff":
        return JAMO["T"]
    return category(sign)


@dataclass(frozen=True)
class Stems:
    """The stem of each of some pairs: where it starts in source and target, and its length."""

    in_source: NDArray[np.int64]
    in_target: NDArray[np.int64]
    lengths: NDArray[np.int64]
    """0: the pair has none."""


def hallucinate(
    encoded: Encoded, letters: Letters, asked: recipe.Hallucination, random: np.random.Generator
) -> Encoded:
    """The corpus with the stems of a share of its pairs replaced, and some pairs made copies."""
    drawn = np.flatnonzero(random.random(len(encoded)) < asked.share)
    sources, targets = np.array(encoded.source_ids), np.array(encoded.target_ids)
    known = letters.known(encoded)
    invent = (
        _Substrings(known, letters, random)
        if asked.letters == "substrings"
        else _AnyLetters(letters, random)
    )
    stems = stems_of(encoded, drawn, letters)
    for number in np.flatnonzero(stems.lengths).tolist():
        row, length = drawn[number], int(stems.lengths[number])
        here, there = int(stems.in_source[number]), int(stems.in_target[number])
        source, target = known.source(row), known.target(row)
        prefixed = there > 0 or (here > 0 and not letters.is_tag_V[source[here - 1]])
        ended = here + length < len(source) or there + length < len(target)
        start, stop = _without_ends(
            source[here : here + length], letters, asked.kept * prefixed, asked.kept * ended
        )
        if start == stop:
            continue
        first = int(encoded.source_offsets[row]) + here
        invented = invent.stem(sources[first + start : first + stop])
        sources[first + start : first + stop] = invented
        first = int(encoded.target_offsets[row]) + there
        targets[first + start : first + stop] = letters.in_target_V[invented]
    arrays = {**vars(encoded), "source_ids": sources, "target_ids": targets}
    return _with_copies(type(encoded)(**arrays), letters, asked.copies, random)


def _without_ends(stem: Ids, letters: Letters, first: int, last: int) -> tuple[int, int]:
    """Where a stem without so many of its first and last letters, each with its marks, starts and
    stops; nowhere if there are no others."""
    starts = [*np.flatnonzero(~letters.continues_V[stem]).tolist(), len(stem)]
    count = len(starts) - 1
    return (starts[first], starts[count - last]) if first + last < count else (0, 0)


def stems_of(encoded: Encoded, rows: NDArray[np.int64], letters: Letters) -> Stems:
    """The stems of some rows: longest common substrings of at least SHORTEST letters.

    A stem lies within one word, begins with a whole letter and ends with one: if only one of é and
    è as e and a mark is in the source and the other in the target, the e is no part of it.
    """
    encoded = letters.known(encoded)
    found: list[tuple[int, int, int]] = []
    for start in range(0, len(rows), AT_ONCE):
        some = rows[start : start + AT_ONCE].tolist()
        sources = [encoded.source(row) for row in some]
        targets = [letters.in_source_V[encoded.target(row)] for row in some]
        longest = common_substrings(  # -2 is no letter of a source, -1 none of a target
            _padded([np.where(letters.usable_V[ids], ids, -2) for ids in sources], -2),
            _padded(targets, -1),
        )
        for source, target, (here, there, length) in zip(
            sources, targets, zip(*(part.tolist() for part in longest), strict=True), strict=True
        ):
            while length and letters.continues_V[source[here]]:
                here, there, length = here + 1, there + 1, length - 1
            while length and (
                _continues(source, here + length, letters)
                or _continues(target, there + length, letters)
            ):
                length -= 1
            found.append((here, there, length if length >= SHORTEST else 0))
    columns = np.array(found, np.int64).reshape(-1, 3).T
    return Stems(*columns)


def _continues(ids: Ids, place: int, letters: Letters) -> bool:
    return place < len(ids) and ids[place] >= 0 and bool(letters.continues_V[ids[place]])


def _padded(rows: list[Ids], fill: int) -> Ids:
    found = np.full((len(rows), max(map(len, rows))), fill, np.int32)
    for row, ids in enumerate(rows):
        found[row, : len(ids)] = ids
    return found


def common_substrings(
    sources_NS: Ids, targets_NT: Ids
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Of each pair of rows, where the longest common substring starts in both, and its length.

    Of several that are equally long, the first in the source.
    """
    count = len(sources_NS)
    # ending_NT: the length of the common substring that ends here and at the source's place.
    ending_NT = np.zeros((count, targets_NT.shape[1] + 1), np.int64)
    lengths, here, there = (np.zeros(count, np.int64) for _ in range(3))
    for place in range(sources_NS.shape[1]):
        same = sources_NS[:, place, None] == targets_NT
        ending_NT[:, 1:] = np.where(same, ending_NT[:, :-1] + 1, 0)
        last = ending_NT.argmax(axis=1)
        longest = ending_NT[np.arange(count), last]
        better = longest > lengths
        lengths[better] = longest[better]
        here[better] = place + 1 - longest[better]
        there[better] = (last - longest)[better]
    return here, there, lengths


class _AnyLetters:
    """Each letter replaced by any other of its kind."""

    def __init__(self, letters: Letters, random: np.random.Generator) -> None:
        self._letters, self._random = letters, random
        usable = np.flatnonzero(letters.usable_V)
        self._alike = {
            kind: np.array([one for one in usable if letters.kinds[one] == kind], np.int32)
            for kind in {letters.kinds[one] for one in usable}
        }

    def stem(self, old: Ids) -> Ids:
        alike = [self._alike[self._letters.kinds[one]] for one in old]
        drawn = self._random.random(len(old))
        return np.array(
            [some[int(len(some) * at)] for some, at in zip(alike, drawn, strict=True)], np.int32
        )


class _Substrings:
    """Stems of substrings that sources have, as often as they have them."""

    def __init__(self, encoded: Encoded, letters: Letters, random: np.random.Generator) -> None:
        self._ids, self._random = np.asarray(encoded.source_ids), random
        rows = np.repeat(np.arange(len(encoded)), encoded.lengths[0])
        # One number for each word, so that a substring lies within one; 0 elsewhere.
        usable = letters.usable_V[self._ids]
        begins = usable & ~(np.append(False, usable[:-1] & (rows[1:] == rows[:-1])))
        word = np.where(usable, np.cumsum(begins), 0)
        first = usable & ~letters.continues_V[self._ids]
        self._starts = {
            length: np.flatnonzero(
                first[: len(word) + 1 - length]
                & (word[: len(word) + 1 - length] == word[length - 1 :])
            )
            for length in SUBSTRINGS
        }
        self._lengths = [length for length, starts in self._starts.items() if len(starts)]

    def stem(self, old: Ids) -> Ids:
        if not self._lengths:
            return old
        parts, missing = [], len(old)
        while missing > 0:
            length = self._lengths[int(self._random.integers(len(self._lengths)))]
            starts = self._starts[length]
            start = starts[int(self._random.integers(len(starts)))]
            parts.append(self._ids[start : start + min(length, missing)])
            missing -= length
        return np.concatenate(parts)


def _with_copies(
    encoded: Encoded, letters: Letters, share: float, random: np.random.Generator
) -> Encoded:
    """A share of the pairs that have tags made copies: the source without tags is the target.

    With UNKNOWN_TAG, the copies of half of them keep their first tag.
    """
    if not share:
        return encoded
    drawn, known = random.random(len(encoded)) < share, letters.known(encoded)
    unknown = letters.unknown_tag
    keeps_first = random.random(len(encoded)) < 0.5 if unknown is not None else drawn
    sources: list[Ids] = []
    targets: list[Ids] = []
    for row in range(len(encoded)):
        source, target = encoded.source(row), encoded.target(row)
        plain = known.source(row)[~letters.is_tag_V[known.source(row)]]
        copy = letters.in_target_V[plain]
        if drawn[row] and 0 < len(plain) < len(source) and copy.min() >= 0:
            if unknown is not None:
                first = source[: int(keeps_first[row] and len(source) - len(plain) > 1)]
                plain = np.concatenate([first, np.array([unknown], np.int32), plain])
            source, target = plain, copy
        sources.append(source)
        targets.append(target)
    arrays = dict(vars(encoded))
    for side, ids in (("source", sources), ("target", targets)):
        arrays[f"{side}_ids"] = np.concatenate(ids)
        arrays[f"{side}_offsets"] = np.cumsum([0, *map(len, ids)], dtype=np.int64)
    return type(encoded)(**arrays)
