"""Language identification by character n-grams, among some languages.

A profile is the list of a language's most frequent n-grams of one to three characters (Cavnar and
Trenkle 1994, https://www.let.rug.nl/vannoord/TextCat/textcat.pdf). Those in profiles.txt were
counted in the Universal Declaration of Human Rights by tools/make_language_profiles.py. A language
without one gets a profile from the vocabulary of the model that reads it.

The probability of an n-gram is taken from its rank (Zipf's law), that of a text is the product over
its n-grams. As these overlap, the product is too sure of itself: the logarithms are divided by
TEMPERATURE, which makes confidences roughly right on captions of Multi30k.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar
from unicodedata import combining, name, normalize

import numpy as np
from numpy.typing import NDArray

PROFILES = Path(__file__).with_name("profiles.txt")
SIZE = 500  # n-grams of a profile
LONGEST = 3  # characters of an n-gram
RANK_OFFSET = 10.0  # Zipf-Mandelbrot: p ~ 1 / (rank + offset)
SHARE = 0.8  # of all n-grams of a text that are in the profile
UNSEEN = -13.0  # log-probability of an n-gram outside the profile
OTHER_SCRIPT = -25.0  # of one in a script that the language is not written in
TEMPERATURE = 6.0
ENOUGH = 1_000  # characters that are enough to tell
MAX_KEPT = 20_000  # words, and n-grams, whose scores are kept, some 12 MB each

Scores = NDArray[np.float64]
"""The log-probability in each language that has a profile."""
T = TypeVar("T")


@dataclass(frozen=True)
class Detected:
    """A language, and the probability of it among all languages with a profile."""

    language: str
    probability: float

    @property
    def confidence(self) -> float:
        """From 0 to 100."""
        return round(100 * self.probability, 1)


@dataclass(frozen=True)
class Profile:
    """The log-probability of each frequent n-gram, and the scripts of its characters."""

    log_probabilities: Mapping[str, float]
    scripts: frozenset[str]

    @classmethod
    def of(cls, ranked: Iterable[str]) -> Profile:
        """N-grams in order of frequency."""
        grams = list(ranked)[:SIZE]
        total = sum(1 / (rank + RANK_OFFSET) for rank in range(len(grams)))
        values = {
            gram: math.log(SHARE / (rank + RANK_OFFSET) / total) for rank, gram in enumerate(grams)
        }
        return cls(values, frozenset(script_of(gram) for gram in grams))

    def score(self, gram: str, script: str) -> float:
        """The log-probability of an n-gram in this script."""
        value = self.log_probabilities.get(gram)
        if value is not None:
            return value
        return UNSEEN if script in self.scripts else OTHER_SCRIPT


class _Kept(dict[str, T]):
    """Results that are computed once; bounded: a full one begins anew."""

    def of(self, key: str, compute: Callable[[str], T]) -> T:
        try:
            return self[key]
        except KeyError:
            found = compute(key)
            if len(self) >= MAX_KEPT:
                self.clear()
            self[key] = found
            return found


class Detector:
    """Tells which of some languages a text is in, by the profiles."""

    engine = "n-grams"
    """What it goes by, to tell a user."""

    def __init__(
        self, languages: Iterable[str], vocabularies: Mapping[str, Iterable[str]] | None = None
    ) -> None:
        """languages: those to choose from. vocabularies: tokens of the models that read them, for
        languages without a profile of their own."""
        self.languages = list(dict.fromkeys(languages))
        self._vocabularies = dict(vocabularies or {})
        self._words, self._grams = _Kept[Scores | None](), _Kept[Scores]()

    def detect(self, text: str) -> list[Detected]:
        """The languages, the most probable first; none for a text without letters.

        Probabilities are among all languages with a profile: of a text in none of the languages
        to choose from, all are low.
        """
        found = self._scores(text[:ENOUGH])
        if found is None:
            return []
        scores = dict(zip(self._profiles, found.tolist(), strict=True))
        weights = np.exp((found - found.max()) / TEMPERATURE)
        shares = dict(zip(self._profiles, (weights / weights.sum()).tolist(), strict=True))
        # By scores: probabilities far from the best are all 0.
        order = sorted(self.languages, key=lambda code: -scores[code])
        return [Detected(code, shares[code]) for code in order]

    def _scores(self, text: str) -> Scores | None:
        """The log-probability of a text in each language that has a profile; None of one without
        letters. N-grams do not span spaces: the scores of what stands between two are added, and
        kept, as most words of a text have occurred before.
        """
        found = [self._words.of(word, self._word_scores) for word in text.split()]
        words = [scores for scores in found if scores is not None]
        return np.add.reduce(words) if words else None

    def _word_scores(self, word: str) -> Scores | None:
        grams = [self._grams.of(gram, self._gram_scores) for gram in n_grams(word)]
        return np.add.reduce(grams) if grams else None

    def _gram_scores(self, gram: str) -> Scores:
        script = script_of(gram)
        return np.array([profile.score(gram, script) for profile in self._profiles.values()])

    @cached_property
    def _profiles(self) -> dict[str, Profile]:
        found = {code: Profile.of(grams) for code, grams in read_profiles()}
        for language in self.languages:
            if language not in found:
                known = found.get(base_of(language))
                found[language] = known or profile_of_vocabulary(
                    self._vocabularies.get(language, ())
                )
        return found


class LinguaDetector(Detector):
    """The same by lingua, https://github.com/pemistahl/lingua-py, for the languages it knows."""

    engine = "lingua"

    def detect(self, text: str) -> list[Detected]:
        """Probabilities are among all languages that lingua knows."""
        if not any(True for _ in n_grams(text[:ENOUGH])):
            return []
        values = self._lingua.compute_language_confidence_values(text[:ENOUGH])
        found = {one.language.iso_code_639_1.name.lower(): float(one.value) for one in values}
        detected = [Detected(code, found[base_of(code)]) for code in self.languages]
        return sorted(detected, key=lambda one: -one.probability)

    @cached_property
    def _lingua(self) -> Any:
        from lingua import LanguageDetectorBuilder

        return LanguageDetectorBuilder.from_all_languages().build()


def choose_detector(
    languages: Iterable[str], vocabularies: Mapping[str, Iterable[str]] | None = None
) -> Detector:
    """lingua's, where it is installed (the extra `languages`) and knows all of the languages; else
    the one by profiles, which can be given any language."""
    chosen = list(languages)
    known = bool(chosen) and all(base_of(code) in lingua_codes() for code in chosen)
    return (LinguaDetector if known else Detector)(chosen, vocabularies)


@cache
def lingua_codes() -> frozenset[str]:
    """The codes of the languages that lingua knows; none where it is not installed."""
    try:
        from lingua import Language
    except ImportError:
        return frozenset()
    return frozenset(language.iso_code_639_1.name.lower() for language in Language.all())


def base_of(code: str) -> str:
    """A code without its region: en of en-GB."""
    return code.replace("_", "-").partition("-")[0].lower()


def n_grams(text: str) -> Iterator[str]:
    """The n-grams of a text's words, in lower case; spaces around words are part of them."""
    letters = (c if c.isalpha() or combining(c) else " " for c in normalize("NFC", text).lower())
    for word in "".join(letters).split():
        whole = f" {word} "
        for size in range(1, LONGEST + 1):
            for start in range(len(whole) - size + 1):
                gram = whole[start : start + size]
                if gram != " ":
                    yield gram


def script_of(gram: str) -> str:
    """The script of its first letter, by Unicode's names: LATIN, CJK, HIRAGANA ..."""
    letter = gram.strip()[:1]
    return name(letter, "").partition(" ")[0]


def profile_of_vocabulary(tokens: Iterable[str]) -> Profile:
    """A profile from the tokens of a model: frequent ones come first in a vocabulary."""
    counts: Counter[str] = Counter()
    for rank, token in enumerate(tokens):
        for gram in n_grams(token.replace("▁", " ")):
            counts[gram] += 1.0 / (rank + RANK_OFFSET)  # type: ignore[assignment]
    return Profile.of(gram for gram, _ in counts.most_common())


def read_profiles() -> Iterator[tuple[str, list[str]]]:
    """Codes, and n-grams in order; `_` is a space in the file."""
    for line in PROFILES.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            code, grams = line.split("\t")
            yield code, [gram.replace("_", " ") for gram in grams.split()]


def write_profiles(texts: Mapping[str, Iterable[str]], path: Path, about: str) -> None:
    """Count the n-grams of texts of each language, and write a file for read_profiles."""
    lines = [f"# {about}"]
    for code, some in sorted(texts.items()):
        counts = Counter(gram for text in some for gram in n_grams(text))
        ranked = sorted(counts, key=lambda gram: (-counts[gram], gram))[:SIZE]
        lines.append(f"{code}\t{' '.join(gram.replace(' ', '_') for gram in ranked)}")
    path.write_text("\n".join(lines) + "\n", "utf-8")
