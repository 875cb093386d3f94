"""Getting a corpus: its files fetched or found, checked, made into one form, put in place whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from transduce.corpora.download import download
from transduce.corpora.entry import Form, Listing, checksum, megabytes
from transduce.corpora.local_copy import find_given
from transduce.corpora.location import FACTS, check_place, facts_of, is_whole
from transduce.corpora.unpack import has_sum
from transduce.errors import DataError
from transduce.storage import write_json

Watch = Callable[[str, int], None]
"""Is told which file is being fetched, and how many bytes of all of them are there."""


def get(listing: Listing, shelf: Path, given: Path | None, watch: Watch) -> bool:
    """Make sure that a corpus is in the folder `shelf`: from files in `given`, or fetched.

    False if it was there and whole. Raises DataError; then nothing is left but, under NAME.part,
    what was fetched so far, from which the next call goes on.
    """
    place = shelf / listing.name
    if is_whole(place):
        return False
    check_place(place)
    if given is None and not listing.public:
        wanted = ", ".join(file.name for file in listing.forms[0].files)
        raise DataError(
            f"{listing.name} cannot be fetched: get {wanted} ({listing.home}), and name their "
            f"folder with --from"
        )
    found = None if given is None else find_given(listing, given)
    with _workshop(shelf / f"{listing.name}.part", listing.name) as work:
        _check_space(listing, work, fetched=given is None)
        form, files = found or (listing.forms[0], _fetch(listing, work / "downloads", watch))
        watch("putting it in order", listing.download)
        _put(listing, form, files, work / "made", place)
        shutil.rmtree(work / "downloads", ignore_errors=True)
    return True


@contextmanager
def _workshop(work: Path, name: str) -> Iterator[Path]:
    """A folder to work in, for one process alone; at the end only downloads are left in it."""
    lock = work / "lock"
    try:
        work.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise DataError(
            f"the folder {work} cannot be made ({error.strerror}); choose another with --output"
        ) from None
    try:
        if not _is_free(handle):
            raise DataError(f"another process is getting {name} into {work.parent}; let it end")
        try:
            yield work
        finally:
            shutil.rmtree(work / "made", ignore_errors=True)
            lock.unlink(missing_ok=True)
            for folder in (work / "downloads", work):
                with suppress(OSError):  # what is not empty stays
                    folder.rmdir()
    finally:
        os.close(handle)


def _is_free(handle: int) -> bool:
    """Take a lock, which ends with the process however that ends; Windows has none of the kind."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network drives know no locks
        return True
    return True


def _check_space(listing: Listing, work: Path, fetched: bool) -> None:
    there = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    needed = listing.size + (max(0, listing.download - there) if fetched else 0)
    free = shutil.disk_usage(work).free
    if free < needed:
        raise DataError(
            f"{listing.name} needs {megabytes(needed)}, and {megabytes(free)} are free in "
            f"{work.parent}; free some space, or choose another place with --output"
        )


def _fetch(listing: Listing, folder: Path, watch: Watch) -> dict[str, Path]:
    """Where the public files of a corpus lie, now that they have been fetched."""
    folder.mkdir(exist_ok=True)
    files: dict[str, Path] = {}
    before = 0
    for file in listing.forms[0].files:
        name = Path(urlsplit(file.address).path).name
        expected, packing = checksum(listing.name, file.name), name.removeprefix(file.name)
        path = folder / name
        if not path.is_file():
            is_right = partial(has_sum, expected=expected, suffix=packing)
            progress = partial(_add, watch, name, before)
            download(file.address, path, expected.download, is_right, progress)
        before += expected.download
        watch(name, before)
        files[file.name] = path
    return files


def _add(watch: Watch, name: str, before: int, there: int) -> None:
    watch(name, before + there)


def _put(listing: Listing, form: Form, files: Mapping[str, Path], made: Path, place: Path) -> None:
    """Make the corpus aside; then it has its name at once, or not at all."""
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        form.make(files, made)
        facts = facts_of(
            made,
            name=listing.name,
            about=listing.about,
            licence=listing.terms,
            home=listing.home,
        )
        for name in facts["files"]:
            with (made / name).open("rb+") as file:
                os.fsync(file.fileno())
        write_json(made / FACTS, facts)
        shutil.rmtree(place, ignore_errors=True)
        made.replace(place)
    except OSError as error:
        ours = error.filename is None or Path(error.filename).is_relative_to(made.parent)
        if not ours:
            raise  # a file that was given
        raise DataError(
            f"{place} could not be written ({error.strerror or error}); free some space, or choose "
            f"another place with --output"
        ) from None
