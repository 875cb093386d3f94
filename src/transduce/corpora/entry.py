"""Catalogue entry of a corpus: licence, files, checksums, and how it is made and read."""

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
"""A function that makes the corpus in a new folder, from the paths of its files by name."""


@dataclass(frozen=True)
class File:
    """A source file of a corpus: its name when decompressed, and its public address."""

    name: str
    address: str = ""


@dataclass(frozen=True)
class Form:
    """A set of files that hold a corpus, and the function that makes it from them."""

    files: tuple[File, ...]
    make: Make


@dataclass(frozen=True)
class Listing:
    name: str
    about: str
    licence: str
    """The licence in two or three words; `terms` has it in full."""
    terms: str
    home: str
    size: int
    """Bytes on disk."""
    splits: Mapping[str, int]
    """Size of each split, in `unit`s."""
    forms: tuple[Form, ...]
    """Forms of its files: the first is downloaded, if public; files of any can be given."""
    read: Callable[[str, str], Files]
    """The files of a split, for a value of `key`."""
    key: Literal["pair", "language", ""] = ""
    """The key that a recipe must give besides name and split."""
    example: str = ""
    """An example value of `key`."""
    unit: str = "pairs"
    languages: Callable[[Path], Sequence[str]] = lambda folder: ()
    """The possible values of `key`, for the corpus in a folder."""
    command: str = ""
    """The command that makes it, if it is neither downloaded nor made from files."""

    @property
    def public(self) -> bool:
        """Whether it can be downloaded; otherwise its files must be given, or a command makes
        it.
        """
        return bool(self.forms) and all(file.address for file in self.forms[0].files)

    @property
    def download(self) -> int:
        """The size of the download in bytes."""
        fetched = self.forms[0].files if self.forms else ()
        return sum(checksum(self.name, file.name).download for file in fetched)


@dataclass(frozen=True)
class Checksum:
    """SHA-256 and size of a file when decompressed; and the size of the download."""

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
