"""Announcements of a railway station that was never built: a corpus of speech that is made here.

`transduce demo speech` has espeak's voices read them. The test has voices and announcements that
training has not.
"""

from __future__ import annotations

import random
from pathlib import Path

from transduce.corpora.entry import Listing
from transduce.corpora.location import read_facts
from transduce.recipe import Recordings

NAME = "announcements"
COLUMNS = ("audio", "text", "voice", "seconds")
COUNTS = {"train": 920, "valid": 46, "test": 100}

PLACES = "athens berlin cairo dublin lisbon london madrid oslo paris prague rome vienna"
# The next word cannot be guessed: a recogniser must listen to every word.
PARTS = {
    "service": ["train", "express", "bus", "tram", "ferry"],
    "place": PLACES.split(),
    "digit": ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero"],
}
FORMS = [
    "{service} {digit} {digit} to {place} platform {digit}",
    "{service} to {place} calling at {place} {place} and {place}",
    "{place} {service} {digit} minutes late",
    "change at {place} for {place} {place} and {place}",
    "window {digit} for tickets to {place} and {place}",
]


def announcements() -> dict[str, list[str]]:
    """The announcements of each split; no two are equal."""
    # random() is the only method whose sequence Python guarantees for a seed.
    draw = random.Random(18250927).random
    found: dict[str, None] = {}
    while len(found) < sum(COUNTS.values()):
        text = _one_of(FORMS, draw())
        while "{" in text:
            name = text[text.index("{") + 1 : text.index("}")]
            text = text.replace(f"{{{name}}}", _one_of(PARTS[name], draw()), 1)
        found[text] = None
    texts = iter(found)
    return {split: [next(texts) for _ in range(count)] for split, count in COUNTS.items()}


def _one_of(choices: list[str], share: float) -> str:
    return choices[int(share * len(choices))]


def _read(split: str, _: str) -> Recordings:
    return Recordings(file=f"{NAME}/{split}.tsv", audio="audio", target="text")


def _made(folder: Path) -> list[str]:
    return ["en"] if read_facts(folder) else []


ANNOUNCEMENTS = Listing(
    name=NAME,
    about="announcements of a railway station, read by espeak's voices",
    licence="Apache-2.0",
    terms="made by transduce, read by espeak-ng",
    home="https://github.com/espeak-ng/espeak-ng",
    size=0,
    splits=COUNTS,
    forms=(),
    read=_read,
    unit="recordings",
    languages=_made,
    command="transduce demo speech",
)
