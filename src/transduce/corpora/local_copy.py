"""Find the files of a corpus on this machine, compressed or not."""

from __future__ import annotations

from pathlib import Path

from transduce.corpora.entry import Form, Listing, checksum, is_known
from transduce.corpora.unpack import PACKED, has_sum
from transduce.errors import DataError

Files = dict[str, Path]


def find_local_files(listing: Listing, folder: Path) -> tuple[Form, Files]:
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
