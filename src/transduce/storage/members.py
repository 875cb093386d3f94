"""A file in a tar archive, read where it lies: nothing is unpacked."""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from transduce.errors import DataError
from transduce.storage.positions import Place, Version, open_at, place_at, version_of
from transduce.storage.remote import RemotePath

HEADER = tarfile.BLOCKSIZE  # bytes before the content of a member
TEXT = re.compile(r"(?P<archive>.*)#member=(?P<start>\d+),(?P<size>\d+),(?P<name>.*)", re.DOTALL)


@dataclass(frozen=True)
class TarMember:
    """A member of an archive that is not compressed, with the part of pathlib.Path that readers
    need. As text: shard-000.tar#member=512,32044,a.wav.
    """

    archive: Place
    start: int
    """Of its content, in bytes."""
    size: int
    inside: str
    """Its name in the archive."""

    @classmethod
    def parse(cls, text: str) -> TarMember | None:
        """From its text; None for the name of a file."""
        found = TEXT.fullmatch(text)
        if found is None:
            return None
        archive = place_at(found["archive"])
        return cls(archive, int(found["start"]), int(found["size"]), found["name"])

    def __str__(self) -> str:
        return f"{self.archive}#member={self.start},{self.size},{self.inside}"

    @property
    def name(self) -> str:
        return PurePosixPath(self.inside).name

    @property
    def stem(self) -> str:
        return PurePosixPath(self.inside).stem

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.inside).suffix

    @property
    def parent(self) -> Place:
        return self.archive.parent

    def open(self, mode: Literal["rb"] = "rb") -> BinaryIO:
        """Its content. Raises DataError where the archive is not the one that was indexed."""
        begin, end = self.start - HEADER, self.start + self.size
        try:
            with open_at(self.archive, begin, _version(self.archive), end) as file:
                raw = file.read(end - begin)
            header = tarfile.TarInfo.frombuf(raw[:HEADER], "utf-8", "surrogateescape")
        except (tarfile.HeaderError, OSError):
            header = None
        # Longer names, and letters that are not ASCII, are not in the header itself.
        named = self.inside.isascii() and len(self.inside) <= tarfile.LENGTH_NAME
        expected = None if header is None else (self.inside if named else header.name, self.size)
        if header is None or (header.name, header.size) != expected or len(raw) != end - begin:
            raise DataError(
                f"{self.archive} has no {self.inside} at byte {self.start:,} any more: it has "
                f"changed since it was indexed; start again, which indexes it anew"
            )
        return BytesIO(raw[HEADER:])


def _version(archive: Place) -> Version:
    """A store is asked once for all members: who fetches from it sees whether it has changed."""
    return _version_in_store(archive) if isinstance(archive, RemotePath) else version_of(archive)


@lru_cache(maxsize=4096)
def _version_in_store(archive: RemotePath) -> Version:
    return archive.version()


AudioPlace = Path | RemotePath | TarMember
"""Where audio is: a file, one of a store, or a member of an archive."""


def audio_place(name: str | AudioPlace) -> AudioPlace:
    return (TarMember.parse(name) or place_at(name)) if isinstance(name, str) else name


def container(place: AudioPlace) -> Place:
    """The file that a place is in: of a member its archive, of others the file itself."""
    return place.archive if isinstance(place, TarMember) else place


def size_of(place: AudioPlace) -> int:
    """In bytes. Raises DataError where there is no such file."""
    return place.size if isinstance(place, TarMember) else version_of(place).size
