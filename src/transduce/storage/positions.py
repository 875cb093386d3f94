"""Files that are read by position: which version of a file it is, and opening it at an offset.

All that reads a corpus by position opens files here, so that another place than a disk needs only
these two functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from transduce.errors import DataError


@dataclass(frozen=True)
class Version:
    """What tells that a file is still the same: its size and the time of its last change."""

    size: int
    changed: str


def version_of(path: Path) -> Version:
    """Raises DataError where there is no such file."""
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    return Version(status.st_size, str(status.st_mtime_ns))


def open_at(path: Path, offset: int = 0, version: Version | None = None) -> BinaryIO:
    """A file, open at a byte. Raises DataError where it is no longer the expected version."""
    if version is not None:
        check_version(path, version)
    file = path.open("rb")
    file.seek(offset)
    return file


def check_version(path: Path, version: Version) -> None:
    """Raise DataError where a file has changed since it was indexed."""
    if version_of(path) != version:
        raise DataError(
            f"{path} has changed since this run began to read it; put the file back as it was, "
            f"or start again with --resume, which indexes it anew"
        )
