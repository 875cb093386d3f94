"""Files that are read by position: which version of a file it is, and opening it at an offset.

A file is on this machine (a Path) or in a store (a RemotePath). All that reads a corpus by position
opens files here.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from transduce.errors import DataError, unreadable
from transduce.storage import expanded
from transduce.storage.remote import RemotePath, is_remote
from transduce.storage.versions import Version

__all__ = ["Place", "Version", "check_version", "open_at", "place_at", "version_of"]

Place = Path | RemotePath


def place_at(name: str, folder: str | None = None) -> Place:
    """A path or an address: relative names start at `folder`, ~ is the home folder.

    Raises DataError for an address with an unknown scheme.
    """
    if is_remote(name):
        return RemotePath(name)
    path = expanded(name.removeprefix("file://"))
    if folder is None or path.is_absolute():
        return path
    return place_at(folder) / path


def version_of(path: Place) -> Version:
    """Raises DataError where there is no such file."""
    if isinstance(path, RemotePath):
        return path.version()
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return Version(status.st_size, str(status.st_mtime_ns))


def open_at(
    path: Place, offset: int = 0, version: Version | None = None, end: int | None = None
) -> BinaryIO:
    """A file, open at a byte. Raises DataError where it is no longer the expected version.

    end: what is behind it is not needed; of a remote file it is not fetched.
    """
    if isinstance(path, RemotePath):
        if version is None or end is None:
            file = path.open("rb", version)
            file.seek(offset)
            return file
        return BytesIO(path.read(offset, end, version))
    if version is not None:
        check_version(path, version)
    file = path.open("rb")
    file.seek(offset)
    return file


def check_version(path: Place, version: Version) -> None:
    """Raise DataError where a file has changed since it was indexed."""
    if version_of(path) != version:
        raise DataError(
            f"{path} has changed since this run began to read it; put the file back as it was, "
            f"or start again with --resume, which indexes it anew"
        )
