"""Digits spoken in English by six people: the Free Spoken Digit Dataset (Jackson et al. 2018).

The authors' split: of the 50 recordings that a speaker has of a digit, the first five are the test.
The next five are for validation. To recognise the digit, or to tell who speaks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from transduce.corpora.entry import File, Form, Listing
from transduce.corpora.sets.asterisk import DIGITS
from transduce.corpora.unpack import members
from transduce.errors import DataError
from transduce.recipe import Recordings

HOME = "https://github.com/Jakobovski/free-spoken-digit-dataset"
VERSION = "1.0.10"
SOUND = re.compile(
    r"(?:[\w.-]+/)*recordings/(?P<name>(?P<digit>\d)_(?P<speaker>[a-z]+)_(?P<number>\d+)\.wav)"
)
COLUMNS = ("path", "text", "speaker")
OF_EACH = 50
HELD_OUT = 5  # recordings of a digit by a speaker, for the test and as many for validation


def _make(files: Mapping[str, Path], folder: Path) -> None:
    """From the archive of the repository, or from a folder that it was unpacked to."""
    (origin,) = files.values()
    (folder / "sounds").mkdir()
    rows: dict[str, list[tuple[str, str, int, str]]] = {split: [] for split in SPOKEN_DIGITS.splits}
    for found, contents in members(origin, SOUND):
        number = int(found["number"])
        if number >= OF_EACH:
            continue
        (folder / "sounds" / found["name"]).write_bytes(contents)
        split = "test" if number < HELD_OUT else "valid" if number < 2 * HELD_OUT else "train"
        rows[split].append((found["speaker"], found["digit"], number, found["name"]))
    for split, some in rows.items():
        if len(some) != SPOKEN_DIGITS.splits[split]:
            raise DataError(
                f"{origin} has {len(some):,} recordings for {split} instead of "
                f"{SPOKEN_DIGITS.splits[split]:,}; get version {VERSION} from {HOME}"
            )
        lines = ["\t".join(COLUMNS)]
        lines += [f"sounds/{n}\t{DIGITS[int(d)]}\t{s}" for s, d, _, n in sorted(some)]
        (folder / f"{split}.tsv").write_bytes(("\n".join(lines) + "\n").encode("utf-8"))


def _read(split: str, _: str) -> Recordings:
    file = f"spoken-digits/{split}.tsv"
    return Recordings(file=file, audio="path", target="text", group="speaker")


SPOKEN_DIGITS = Listing(
    name="spoken-digits",
    about="digits spoken in English by six people, 22 minutes, to recognise",
    licence="CC BY-SA 4.0",
    terms="CC BY-SA 4.0, the Free Spoken Digit Dataset by Zohar Jackson and others",
    home=HOME,
    size=21_643_442,
    splits={"train": 2_400, "valid": 300, "test": 300},
    forms=(
        Form((File(f"v{VERSION}.tar", f"{HOME}/archive/refs/tags/v{VERSION}.tar.gz"),), _make),
        Form((File(f"free-spoken-digit-dataset-{VERSION}.tar"),), _make),
        Form((File("recordings"),), _make),
    ),
    read=_read,
    unit="recordings",
)
