"""The catalogue of corpora by name, and the files of those on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transduce.corpora.entry import Files, Listing
from transduce.corpora.generated import MADE, SPLITS
from transduce.corpora.location import check_choice, check_language, find, some_of
from transduce.corpora.speech import ANNOUNCEMENTS, ASTERISK, MBOSHI, SPOKEN_DIGITS, UDHR_SPOKEN
from transduce.corpora.text import (
    CMUDICT,
    EWT,
    IMDB,
    MULTI30K,
    SIGMORPHON2020,
    TINY_SHAKESPEARE,
)
from transduce.corpora.udhr import UDHR
from transduce.errors import DataError
from transduce.recipe import Named

FETCHED: dict[str, Listing] = {
    listing.name: listing
    for listing in (
        ANNOUNCEMENTS,
        ASTERISK,
        CMUDICT,
        EWT,
        IMDB,
        MBOSHI,
        MULTI30K,
        SIGMORPHON2020,
        SPOKEN_DIGITS,
        TINY_SHAKESPEARE,
        UDHR,
        UDHR_SPOKEN,
    )
}


def listing_of(name: str) -> Listing | None:
    """The listing of a corpus that is downloaded; None for one that is generated. Raises
    DataError.
    """
    check_choice("corpus", name, sorted([*MADE, *FETCHED]))
    return FETCHED.get(name)


def splits_of(name: str) -> list[str]:
    """The splits of a corpus, whether or not it is on this machine. Raises DataError."""
    listing = listing_of(name)
    return list(SPLITS if listing is None else listing.splits)


def check_named(corpus: Named) -> None:
    """Raise DataError unless there is such a corpus and split, and it is on this machine."""
    listing = listing_of(corpus.name)
    if listing is None:
        check_choice("split", corpus.split, SPLITS, corpus.name)
        _check_key(corpus, "", ())
    else:
        files_of(corpus, listing)


def files_of(corpus: Named, listing: Listing) -> tuple[Files, Path]:
    """The files of a downloaded corpus, and the folder of their names. Raises DataError."""
    split, choice = corpus.split, corpus.pair or corpus.language or ""
    check_choice("split", split, list(listing.splits), listing.name)  # also if it is not here yet
    folder = find(listing)
    _check_key(corpus, listing.key, listing.languages(folder))
    return listing.read(split, choice), folder.parent


def _check_key(corpus: Named, key: str, languages: Sequence[str]) -> None:
    """Raise DataError unless a recipe gives exactly the keys that the corpus needs."""
    name, given = corpus.name, {"pair": corpus.pair, "language": corpus.language}
    for other, value in given.items():
        if other != key and value is not None:
            hint = f"it takes {key}" if key else "leave it out"
            raise DataError(f"{name} takes no {other} (here {value}); {hint}")
    if not key:
        return
    chosen = given[key]
    example = f"{key}: {FETCHED[name].example}"
    if chosen is None:
        raise DataError(f"{name} needs a {key}, such as {example}, of {some_of(languages)}")
    parts = chosen.split("-") if key == "pair" else [chosen]
    if len(parts) != (2 if key == "pair" else 1):
        raise DataError(f"{chosen} is not a pair of {name}; write it as in {example}")
    for part in parts:
        check_language(name, part, languages)
