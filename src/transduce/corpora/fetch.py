"""Get a corpus: download or find its files, verify checksums, convert, and put it in place
atomically.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from transduce.corpora.download import download
from transduce.corpora.entry import Form, Listing, checksum, is_known, megabytes
from transduce.corpora.location import METADATA, check_place, is_intact, metadata_of
from transduce.corpora.unpack import PACKED, has_sum
from transduce.errors import DataError
from transduce.storage import remove_stale, replace_folder, write_json
from transduce.storage.locks import take_lock

OnProgress = Callable[[str, int], None]
"""Called with the file being downloaded, and the bytes received of all files."""


def get(listing: Listing, shelf: Path, local: Path | None, on_progress: OnProgress) -> bool:
    """Make sure that a corpus is in the folder `shelf`: from files in `local`, or downloaded.

    False if it was there and intact. Raises DataError; then nothing is left except partial
    downloads under NAME.part, from which the next call resumes.
    """
    place = shelf / listing.name
    remove_stale(shelf)
    if is_intact(place):
        return False
    check_place(place)
    if local is None and not listing.public:
        wanted = ", ".join(file.name for file in listing.forms[0].files)
        raise DataError(
            f"{listing.name} cannot be downloaded: get {wanted} ({listing.home}), and name their "
            f"folder with --from"
        )
    found = None if local is None else find_local_files(listing, local)
    with _work_folder(shelf / f"{listing.name}.part", listing.name) as work:
        _check_space(listing, work, fetched=local is None)
        form, files = found or (listing.forms[0], _fetch(listing, work / "downloads", on_progress))
        on_progress("converting", listing.download)
        _put(listing, form, files, work / "made", place)
        shutil.rmtree(work / "downloads", ignore_errors=True)
    return True


@contextmanager
def _work_folder(work: Path, name: str) -> Iterator[Path]:
    """A work folder for one process; at the end only partial downloads are left in it."""
    lock = work / "lock"
    try:
        work.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise DataError(
            f"the folder {work} cannot be made ({error.strerror}); choose another with --output"
        ) from None
    try:
        if not take_lock(handle):
            raise DataError(f"another process is getting {name} into {work.parent}; wait for it")
        try:
            yield work
        finally:
            shutil.rmtree(work / "made", ignore_errors=True)
            lock.unlink(missing_ok=True)
            for folder in (work / "downloads", work):
                with suppress(OSError):  # non-empty folders stay
                    folder.rmdir()
    finally:
        os.close(handle)


def _check_space(listing: Listing, work: Path, fetched: bool) -> None:
    there = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    needed = listing.size + (max(0, listing.download - there) if fetched else 0)
    free = shutil.disk_usage(work).free
    if free < needed:
        raise DataError(
            f"{listing.name} needs {megabytes(needed)}, and {megabytes(free)} are free in "
            f"{work.parent}; free some space, or choose another place with --output"
        )


def _fetch(listing: Listing, folder: Path, on_progress: OnProgress) -> dict[str, Path]:
    """Download the public files of a corpus; their paths."""
    folder.mkdir(exist_ok=True)
    files: dict[str, Path] = {}
    before = 0
    for file in listing.forms[0].files:
        name = Path(urlsplit(file.address).path).name
        expected, packing = checksum(listing.name, file.name), name.removeprefix(file.name)
        path = folder / name
        if not path.is_file():
            is_right = partial(has_sum, expected=expected, suffix=packing)
            progress = partial(_add, on_progress, name, before)
            download(file.address, path, expected.download, is_right, progress)
        before += expected.download
        on_progress(name, before)
        files[file.name] = path
    return files


def _add(on_progress: OnProgress, name: str, before: int, there: int) -> None:
    on_progress(name, before + there)


def _put(listing: Listing, form: Form, files: Mapping[str, Path], made: Path, place: Path) -> None:
    """Make the corpus in a temporary folder, then rename it."""
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        form.make(files, made)
        metadata = metadata_of(
            made,
            name=listing.name,
            about=listing.about,
            licence=listing.terms,
            home=listing.home,
        )
        for name in metadata["files"]:
            with (made / name).open("rb+") as file:
                os.fsync(file.fileno())
        write_json(made / METADATA, metadata)
        replace_folder(made, place)
    except OSError as error:
        about = None if error.filename is None else Path(error.filename)
        if about is not None and any(map(about.is_relative_to, files.values())):
            raise  # the error is about a file that was given
        raise DataError(
            f"{place} could not be written ({error.strerror or error}); free some space, or choose "
            f"another place with --output"
        ) from None


def find_local_files(listing: Listing, folder: Path) -> tuple[Form, dict[str, Path]]:
    """The form of a corpus whose files are in a folder or below it, and their paths.

    Each may be plain, .gz or .xz. Raises DataError if one is missing or has a wrong checksum.
    """
    if not folder.exists():
        raise DataError(f"there is no folder {folder}; name the one that holds {listing.name}")
    nearest: list[str] = []
    for form in listing.forms:
        found = {file.name: _candidates(file.name, folder) for file in form.files}
        lacking = [name for name, paths in found.items() if not paths]
        if not lacking:
            return form, {name: _right(listing, name, paths) for name, paths in found.items()}
        if len(lacking) < len(found):
            nearest = nearest or lacking
    if nearest:
        more = ", …" if len(nearest) > 5 else ""
        raise DataError(f"{folder} lacks {', '.join(nearest[:5])}{more} of {listing.name}")
    forms = [[file.name for file in form.files] for form in listing.forms]
    wanted = "; or ".join(", ".join(names[:4]) + ", …" * (len(names) > 4) for names in forms)
    raise DataError(f"{folder} holds no file of {listing.name}: wanted are {wanted}")


def _candidates(name: str, folder: Path) -> list[Path]:
    """Files of that name, compressed or not; in the folder itself or, if there are none,
    below it.
    """
    names = [name + suffix for suffix in PACKED]
    if folder.name in names:
        return [folder]
    here = [folder / one for one in names if (folder / one).exists()]
    return here or sorted(path for one in names for path in folder.rglob(one))


def _right(listing: Listing, name: str, paths: list[Path]) -> Path:
    """The first with the right checksum; the content of a folder is checked by its reader."""
    for path in paths:
        if not is_known(listing.name, name):
            is_right = path.is_dir()
        else:
            packing = path.name.removeprefix(name)
            is_right = path.is_file() and has_sum(path, checksum(listing.name, name), packing)
        if is_right:
            return path
    raise DataError(
        f"{paths[0]} is damaged, or not the {name} that {listing.name} is made from (its sha256 "
        f"differs); see {listing.home}"
    )
