"""The catalogue of corpora by name, and the files of those on this machine."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from transduce.corpora.entry import Files, Listing, megabytes
from transduce.corpora.generated import MADE, SPLITS
from transduce.corpora.location import corpora_folder, read_facts
from transduce.corpora.sets.announcements import ANNOUNCEMENTS
from transduce.corpora.sets.asterisk import ASTERISK
from transduce.corpora.sets.cmudict import CMUDICT
from transduce.corpora.sets.ewt import EWT
from transduce.corpora.sets.imdb import IMDB
from transduce.corpora.sets.mboshi import MBOSHI
from transduce.corpora.sets.multi30k import MULTI30K
from transduce.corpora.sets.sigmorphon2020 import SIGMORPHON2020
from transduce.corpora.sets.spoken_digits import SPOKEN_DIGITS
from transduce.corpora.sets.tiny_shakespeare import TINY_SHAKESPEARE
from transduce.corpora.sets.udhr import UDHR
from transduce.corpora.sets.udhr_spoken import UDHR_SPOKEN
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
    _check("corpus", name, sorted([*MADE, *FETCHED]))
    return FETCHED.get(name)


def splits_of(name: str) -> list[str]:
    """The splits of a corpus, whether or not it is on this machine. Raises DataError."""
    listing = listing_of(name)
    return list(SPLITS if listing is None else listing.splits)


def check_named(corpus: Named) -> None:
    """Raise DataError unless there is such a corpus and split, and it is on this machine."""
    listing = listing_of(corpus.name)
    if listing is None:
        _check("split", corpus.split, SPLITS, corpus.name)
        _check_key(corpus, "", ())
    else:
        files_of(corpus, listing)


def files_of(corpus: Named, listing: Listing) -> tuple[Files, Path]:
    """The files of a downloaded corpus, and the folder of their names. Raises DataError."""
    split, choice = corpus.split, corpus.pair or corpus.language or ""
    folder = find(listing)
    _check("split", split, list(listing.splits), listing.name)
    _check_key(corpus, listing.key, listing.languages(folder))
    return listing.read(split, choice), folder.parent


def find(listing: Listing) -> Path:
    """The folder of a corpus on this machine. Raises DataError."""
    name, folder = listing.name, corpora_folder() / listing.name
    if listing.command:
        if not listing.languages(folder):
            raise DataError(f"{name} is not on this machine: `{listing.command}` makes it")
        return folder
    facts = read_facts(folder)
    if facts is None:
        how = f"`transduce corpus get {name}` downloads it ({megabytes(listing.download)}"
        if not listing.public:
            how = (
                f"`transduce corpus get {name} --from DIR` makes it from its files ({listing.home}"
            )
        raise DataError(f"{name} is not on this machine: {how}, {listing.licence})")
    lost = next((file for file in facts["files"] if not (folder / file).is_file()), None)
    if lost:
        raise DataError(f"{folder / lost} is missing: `transduce corpus get {name}` restores it")
    return folder


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
        raise DataError(f"{name} needs a {key}, such as {example}, of {_some(languages)}")
    parts = chosen.split("-") if key == "pair" else [chosen]
    if len(parts) != (2 if key == "pair" else 1):
        raise DataError(f"{chosen} is not a pair of {name}; write it as in {example}")
    for part in parts:
        check_language(name, part, languages)


def check_language(name: str, language: str, languages: Sequence[str]) -> None:
    """Raise DataError unless a corpus has that language."""
    # deu is not a version of a text of which there are deu_1901 and deu_1996.
    near = [other for other in languages if other.split("_")[0] == language]
    if language not in languages and near:
        raise DataError(f"{name} has no {language}; there are {', '.join(near)}")
    _check("language", language, languages, name)


def _check(what: str, given: str, choices: Sequence[str], corpus: str = "") -> None:
    if given in choices:
        return
    near = difflib.get_close_matches(given, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {_some(choices)}"
    lack = f"{corpus} has no {what} {given}" if corpus else f"there is no {what} named {given}"
    raise DataError(f"{lack}; {hint}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
