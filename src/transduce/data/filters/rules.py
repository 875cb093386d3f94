"""The rules by which pairs are left out of training (data.filters of a recipe), in one place: for
corpora in memory, for streamed ones and for `transduce check`.

What becomes of a pair depends on the pair alone; of repetitions, the first in the order of the
corpus stays. So the result is the same for any number of processes, and after resuming.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce import recipe
from transduce.data.filters.repetitions import Repetitions
from transduce.data.languages import Detector, base_of
from transduce.data.languages.detect import read_profiles
from transduce.data.text.pairs import (
    EXAMPLES,
    PairColumns,
    audio_of,
    corpus_name,
    text_of,
    warning_of,
)
from transduce.errors import DataError
from transduce.recipe import is_tagged

VERSION = 2  # increase when other pairs are left out by the same rules: caches are made again
TAGS = re.compile(r"\A(?:<[^<>\s]+> ?)+")
Reasons = NDArray[np.int8]
Hashes = NDArray[np.uint64]


class Reason(IntEnum):
    """Why a pair is left out: the first that applies, in this order."""

    KEPT = 0
    SHORT = 1
    COPY = 2
    RATIO = 3
    LANGUAGE = 4
    DUPLICATE = 5


class PairRules:
    """The rules of a recipe."""

    def __init__(
        self, filters: recipe.Filters, languages: recipe.Languages | None, tagged: bool
    ) -> None:
        """tagged: whether sources begin with tags, <fre>, which are not text."""
        self.filters, self.languages, self.tagged = filters, languages, tagged

    def settings(self) -> list[Any]:
        """All that the rules depend on, as JSON."""
        languages = None if self.languages is None else self.languages.model_dump(mode="json")
        return [VERSION, self.filters.model_dump(mode="json"), languages, self.tagged]

    def check(self) -> None:
        """Raise DataError for a language that cannot be told from others."""
        if self.filters.language is None or self.languages is None:
            return
        known = {code for code, _ in read_profiles()}
        for side, code in self.languages.model_dump().items():
            if base_of(code) not in known:
                raise DataError(
                    f"data.filters.language cannot tell {code} (data.languages.{side}) from other "
                    f"languages; leave it out, or give one of {', '.join(sorted(known))}"
                )

    def reasons(self, pairs: PairColumns) -> Reasons:
        """The reason of each pair, without repetitions."""
        asked, found = self.filters, np.zeros(len(pairs), np.int8)
        sources, targets = pairs.sources, pairs.targets
        if self.tagged:
            sources = [TAGS.sub("", source) for source in sources]
        lengths = [np.fromiter(map(len, side), np.int64, len(pairs)) for side in (sources, targets)]
        shorter, longer = np.minimum(*lengths), np.maximum(*lengths)
        if asked.language is not None:
            both = zip(sources, targets, strict=True)
            other = [self._in_other_language(source, target) for source, target in both]
            found[np.array(other, bool)] = Reason.LANGUAGE
        if asked.length_ratio is not None:
            found[longer > asked.length_ratio * shorter] = Reason.RATIO
        if asked.copies:
            same = [one == two for one, two in zip(sources, targets, strict=True)]
            found[np.array(same, bool)] = Reason.COPY
        found[shorter < asked.min_length] = Reason.SHORT
        return found

    def _in_other_language(self, source: str, target: str) -> bool:
        assert self.filters.language is not None
        least = 1 - self.filters.language
        assert self.languages is not None
        sides = ((source, self.languages.source), (target, self.languages.target))
        # A region has the profile of its language, which would be half of the probability each.
        return any(
            found.language == base_of(language) and found.probability <= least
            for text, language in sides
            for found in self._detector.detect(text)
        )

    @cached_property
    def _detector(self) -> Detector:
        """Always by n-grams, so that all machines agree."""
        assert self.languages is not None
        return Detector([base_of(self.languages.source), base_of(self.languages.target)])

    def sentence(self, reason: Reason) -> str:
        """What is said of pairs that are left out."""
        asked, languages = self.filters, self.languages
        said = {
            Reason.SHORT: f"with a side of fewer than {asked.min_length} characters",
            Reason.COPY: "whose source and target are the same",
            Reason.RATIO: f"with a side more than {asked.length_ratio:g} times as long as the other"
            if asked.length_ratio
            else "",
            Reason.LANGUAGE: f"not in {languages.source} and {languages.target}"
            if languages
            else "",
            Reason.DUPLICATE: "that occur earlier in the training set",
        }
        return f"{said[reason]} left out"


def rules_of(data: recipe.Data) -> PairRules | None:
    """The rules of a recipe; None where it has none. Raises DataError."""
    if data.filters is None:
        return None
    if audio_of(data.train) is not None or text_of(data.train) is not None:
        raise DataError(
            f"data.filters is for pairs of texts, and {corpus_name(data.train)} has none; leave it "
            f"out"
        )
    tagged = is_tagged(data.train) or isinstance(data.train, recipe.Named)
    rules = PairRules(data.filters, data.languages, tagged)
    rules.check()
    return rules


def hashes_of(pairs: PairColumns) -> Hashes:
    """64 bits of each pair, the same on every machine.

    Among n different pairs, n² / 2⁶⁵ are taken for repetitions on average: 0.03 of a billion.
    """
    both = zip(pairs.sources, pairs.targets, strict=True)
    found = (hash_of(f"{source}\n{target}") for source, target in both)
    return np.fromiter(found, np.uint64, len(pairs))


def hash_of(text: str) -> int:
    """64 bits of a text, the same on every machine."""
    raw = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(raw, digest_size=8).digest(), "little")


@dataclass
class Dropped:
    """How many pairs are left out by each reason, and where the first of them stand."""

    pairs: int = 0
    """All that were looked at."""
    counts: dict[int, int] = field(default_factory=dict)
    places: dict[int, list[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Dropped:
        """From its fields as JSON, whose keys are texts. Raises KeyError, TypeError, ValueError."""
        counts = {int(reason): int(count) for reason, count in stored["counts"].items()}
        places = {int(reason): list(found) for reason, found in stored["places"].items()}
        return cls(int(stored["pairs"]), counts, places)

    @property
    def total(self) -> int:
        """All that are left out."""
        return sum(self.counts.values())

    def add(self, reasons: Reasons, pairs: PairColumns) -> None:
        """Count some pairs."""
        self.pairs += len(pairs)
        for reason in np.unique(reasons[reasons > 0]).tolist():
            rows = np.flatnonzero(reasons == reason).tolist()
            self.count(reason, len(rows), [pairs.place(row) for row in rows[:EXAMPLES]])

    def count(self, reason: int, pairs: int, places: Sequence[str] = ()) -> None:
        """Count so many pairs that are left out, the first of which are at these places."""
        if pairs:
            self.counts[reason] = self.counts.get(reason, 0) + pairs
            self.places[reason] = [*self.places.get(reason, []), *places][:EXAMPLES]

    def join(self, other: Dropped) -> None:
        """Add the counts of another part of the corpus."""
        self.pairs += other.pairs
        for reason, pairs in other.counts.items():
            self.count(reason, pairs, other.places[reason])

    def sentences(self, rules: PairRules) -> list[str]:
        """A sentence for each reason, for people."""
        found = []
        for reason in Reason:
            count, places = self.counts.get(reason, 0), self.places.get(reason, [])
            found += warning_of(count, rules.sentence(reason) if count else "", places)
        if found:
            share = f"{self.total / self.pairs:.1%}"
            found.append(f"data.filters left out {self.total:,} of {self.pairs:,} pairs ({share})")
        return found

    def check_some_left(self, rules: PairRules) -> None:
        """Raise DataError where no pair is left to train on."""
        if self.pairs and self.total == self.pairs:
            raise DataError(
                f"no pair is left to use: {'; '.join(self.sentences(rules))}; leave some filters "
                f"out, or correct the files"
            )


def judge(chunks: Iterable[PairColumns], rules: PairRules) -> tuple[Reasons, Dropped]:
    """The reason of each pair of a corpus that is read once, in its order."""
    found, dropped = [np.zeros(0, np.int8)], Dropped()
    with Repetitions() as repetitions:
        for chunk in chunks:
            reasons = rules.reasons(chunk)
            if rules.filters.duplicates:
                repetitions.add(hashes_of(chunk))
            dropped.add(reasons, chunk)
            found.append(reasons)
        reasons = np.concatenate(found)
        for rows in repetitions.find():
            repeated = rows[reasons[rows] == Reason.KEPT]
            reasons[repeated] = Reason.DUPLICATE
            dropped.count(Reason.DUPLICATE, len(repeated))
    return reasons, dropped
