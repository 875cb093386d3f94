"""The Declaration of Human Rights as espeak's voices read it: a corpus that is made here.

`transduce corpus udhr` makes it, a folder a language. Voices and articles are held out: validation
and both tests have articles that training has not, `test-voices` also voices that it has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transduce.corpora.entry import Listing
from transduce.corpora.location import read_facts
from transduce.recipe import Recordings

NAME = "udhr-spoken"
ALL = "all"
SPLITS = ("train", "valid", "test-articles", "test-voices")
COLUMNS = ("audio", "text", "phones", "language", "voice", "segment", "seconds")


def languages(folder: Path) -> Sequence[str]:
    """Those that have been made."""
    found = sorted(path.name for path in folder.glob("*") if read_facts(path))
    return [*found, ALL] if found else []


def _read(split: str, language: str) -> Recordings:
    folder = "*" if language == ALL else language
    file = f"{NAME}/{folder}/{split}.tsv"
    return Recordings(file=file, audio="audio", target="phones", group="language")


UDHR_SPOKEN = Listing(
    name=NAME,
    about="the Declaration read aloud by espeak's voices, and its phones",
    licence="free",
    terms="the Declaration is free of copyright; it is read by espeak-ng",
    home="https://github.com/espeak-ng/espeak-ng",
    size=0,
    splits=dict.fromkeys(SPLITS, 0),
    forms=(),
    read=_read,
    key="language",
    example="eng",
    unit="recordings",
    languages=languages,
    command="transduce corpus udhr",
)
