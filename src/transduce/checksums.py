"""model.sha256: a SHA-256 checksum of each file of a model folder.

In the format of sha256sum, which can check a folder by itself: `sha256sum -c model.sha256`.

A file and its checksum cannot be written atomically together. So the checksum of a new file is
added before the file is renamed into place, and that of the old one is removed after that. A kill
in between leaves both, and the file matches one of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import file_digest
from pathlib import Path

from transduce.errors import CheckpointError
from transduce.storage import Announce, locked, write_text

SUMS = "model.sha256"
RETRIES, PAUSE = 3, 0.2  # retries while a run may be replacing the file; pause in seconds

Sums = dict[str, list[str]]
"""The digests of each file: one, or two while it is being replaced."""


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_sums(folder: Path) -> Sums:
    """The content of model.sha256; empty if there is none. CheckpointError if it is damaged."""
    path = folder / SUMS
    try:
        lines = path.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); restore it from a copy") from None
    sums: Sums = {}
    for number, line in enumerate(lines, start=1):
        digest, space, name = line.partition("  ")
        if not space or not name or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            raise CheckpointError(
                f"{path}, line {number}, is damaged: it is not a SHA-256 sum and the name of a "
                f"file; restore it from a copy"
            )
        sums.setdefault(name, []).append(digest)
    return sums


def _write(folder: Path, sums: Sums) -> None:
    lines = [f"{digest}  {name}\n" for name in sorted(sums) for digest in sums[name]]
    write_text(folder / SUMS, "".join(lines))


@contextmanager
def listed(path: Path) -> Iterator[Announce]:
    """Around the writing of a file: yields the function to call with the file before its rename."""
    folder, name = path.parent, path.name
    new: list[str] = []

    def announce(whole: Path) -> None:
        new.append(digest_of(whole))
        with locked(folder / SUMS):
            sums = read_sums(folder)
            before = sums.get(name, [])
            if before[-1:] != new:
                _write(folder, {**sums, name: [one for one in before if one != new[0]] + new})

    yield announce
    if not new:
        return
    with locked(folder / SUMS):
        sums = read_sums(folder)
        digests = sums.get(name, [])
        # Entries after ours are from a later writer, and may be in place already.
        if new[0] in digests[1:]:
            _write(folder, {**sums, name: digests[digests.index(new[0]) :]})


def write_listed(path: Path, text: str) -> None:
    """Write a text file atomically, with its checksum in model.sha256."""
    with listed(path) as announce:
        write_text(path, text, announce)


def list_files(folder: Path, *paths: Path) -> None:
    """Add the checksums of existing files to model.sha256."""
    new = {path.relative_to(folder).as_posix(): [digest_of(path)] for path in paths}
    with locked(folder / SUMS):
        _write(folder, {**read_sums(folder), **new})


def is_ours(path: Path) -> bool:
    """Whether a file is unchanged since transduce wrote it; false for one that a person made or
    edited.
    """
    try:
        return digest_of(path) in read_sums(path.parent).get(path.name, [])
    except (OSError, CheckpointError):
        return False


def fits(path: Path) -> bool:
    """Whether a file matches its checksum; also true if it is not listed or does not exist, which
    its reader reports.
    """
    for attempt in range(RETRIES):
        if attempt:
            time.sleep(PAUSE)
        sums = read_sums(path.parent).get(path.name)
        if sums is None or not path.is_file() or digest_of(path) in sums:
            return True
    return False


def strangers(folder: Path) -> list[Path]:
    """Files in a folder that transduce did not write, or that have changed since."""
    sums = read_sums(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    return [path for path in files if path != folder / SUMS and not _is_listed(path, folder, sums)]


def _is_listed(path: Path, folder: Path, sums: Sums) -> bool:
    digests = sums.get(path.relative_to(folder).as_posix())
    return digests is not None and not path.is_symlink() and digest_of(path) in digests
