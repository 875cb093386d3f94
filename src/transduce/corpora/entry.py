"""What is known of a corpus that can be fetched: its terms, its files, how it is made and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

from transduce.recipe import Columns, Mixture, ParallelFiles, Recordings, Text

Files = ParallelFiles | Columns | Mixture | Recordings | Text
Make = Callable[[Mapping[str, Path], Path], None]
"""From where the files of a form lie, by their names, to the corpus in a new folder."""


@dataclass(frozen=True)
class File:
    """A file that a corpus is made from: its name when it is not packed, and its public address."""

    name: str
    address: str = ""


@dataclass(frozen=True)
class Form:
    """Files that together hold a corpus, and what makes it from them."""

    files: tuple[File, ...]
    make: Make


@dataclass(frozen=True)
class Listing:
    name: str
    about: str
    licence: str
    """In two or three words; `terms` says it in full."""
    terms: str
    home: str
    size: int
    """Bytes on disk once it is made."""
    splits: Mapping[str, int]
    """How many of what `unit` says are in each."""
    forms: tuple[Form, ...]
    """The first is the one that is fetched, where that can be; files of any can be given."""
    read: Callable[[str, str], Files]
    """The files of a split, and of what `key` chooses."""
    key: Literal["pair", "language", ""] = ""
    """What a recipe must say besides name and split."""
    example: str = ""
    """Of what that might be."""
    unit: str = "pairs"
    languages: Callable[[Path], Sequence[str]] = lambda folder: ()
    """That `key` chooses from, of the corpus in a folder."""
    command: str = ""
    """What makes it, where it is neither fetched nor made of files."""

    @property
    def public(self) -> bool:
        """Whether it can be fetched; otherwise its files must be given, or a command makes it."""
        return bool(self.forms) and all(file.address for file in self.forms[0].files)

    @property
    def download(self) -> int:
        """Bytes that are fetched."""
        fetched = self.forms[0].files if self.forms else ()
        return sum(checksum(self.name, file.name).download for file in fetched)


@dataclass(frozen=True)
class Checksum:
    """Of a file when it is not packed; and the size of what is fetched, packed or not."""

    bytes: int
    sha256: str
    download: int


def megabytes(size: int) -> str:
    return f"{max(size / 1e6, 0.1):,.{0 if size >= 1e7 else 1}f} MB"


def checksum(corpus: str, file: str) -> Checksum:
    return _checksums()[corpus, file]


def is_known(corpus: str, file: str) -> bool:
    return (corpus, file) in _checksums()


@cache
def _checksums() -> dict[tuple[str, str], Checksum]:
    table = (resources.files("transduce") / "corpora" / "checksums.tsv").read_text("utf-8")
    rows = [line.split("\t") for line in table.splitlines()[1:]]
    return {(row[0], row[1]): Checksum(int(row[2]), row[3], int(row[4])) for row in rows}
