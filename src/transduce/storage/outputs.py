"""Files that are written in one step, on this machine or in a store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from transduce.errors import CheckpointError
from transduce.storage import Announce, how_to_fix, temporary_folder, write_file
from transduce.storage.positions import Place
from transduce.storage.remote import RemotePath


def write_at(
    place: Place,
    write: Callable[[Path], object],
    work: Path,
    announce: Announce | None = None,
) -> None:
    """Write a file, which others see when it is complete; `write` writes to the path it is given.

    work: a folder of this machine, in which a file is made that is then sent to a store. Raises
    CheckpointError where it cannot be written here, DataError where the store does not take it.
    """
    if not isinstance(place, RemotePath):
        write_file(place, write, announce=announce)
        return
    try:
        with temporary_folder(work) as part:
            whole = part / place.name
            write(whole)
            if announce is not None:
                announce(whole)
            place.upload(whole)
    except OSError as error:
        raise CheckpointError(
            f"{place} could not be made in {work} ({error.strerror or error}): {how_to_fix(error)}"
        ) from None


def write_text_at(place: Place, text: str, work: Path) -> None:
    write_at(place, lambda part: part.write_text(text, encoding="utf-8"), work)
