"""Where corpora are stored, whether one is there, and what it has."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transduce.checksums import digest_of
from transduce.corpora.entry import Listing, megabytes
from transduce.errors import DataError
from transduce.storage import default_cache_folder, expanded

FORMAT = 1  # format version: increase when the files of any corpus change
METADATA = "corpus.json"


def corpora_folder() -> Path:
    """$TRANSDUCE_DATA, or the folder corpora in transduce's cache."""
    chosen = os.environ.get("TRANSDUCE_DATA")
    return expanded(chosen) if chosen else default_cache_folder() / "corpora"


def read_metadata(folder: Path) -> dict[str, Any] | None:
    """The stored metadata of a corpus folder; None if there is none in the current format."""
    try:
        metadata = json.loads((folder / METADATA).read_text("utf-8"))
        return dict(metadata) if metadata["format"] == FORMAT and metadata["files"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def metadata_of(folder: Path, **more: Any) -> dict[str, Any]:
    """Metadata of a corpus that has just been made."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = {path.relative_to(folder).as_posix(): digest_of(path) for path in files}
    return {**more, "format": FORMAT, "files": sums}


def check_place(folder: Path) -> None:
    """Raise DataError if a corpus cannot be put there without removing a user's own files."""
    metadata = read_metadata(folder)
    if not folder.exists() or (metadata is None and (folder / METADATA).is_file()):
        return  # damaged, or of an older format: it does not say which files are its own
    found = [path for path in folder.rglob("*") if not path.is_dir()]
    names = {path.relative_to(folder).as_posix() for path in found} - {METADATA}
    if others := sorted(names - set(metadata["files"] if metadata else ())):
        raise DataError(
            f"{folder} holds other files, such as {others[0]}; move them, or choose another place "
            f"with --output"
        )


def is_intact(folder: Path) -> bool:
    """Whether the corpus in a folder is unchanged, byte for byte."""
    metadata = read_metadata(folder)
    if metadata is None:
        return False
    files: Mapping[str, str] = metadata["files"]
    try:
        return all(digest_of(folder / name) == expected for name, expected in files.items())
    except OSError:
        return False


def find(listing: Listing) -> Path:
    """The folder of a corpus on this machine. Raises DataError."""
    name, folder = listing.name, corpora_folder() / listing.name
    if listing.command:
        if not listing.languages(folder):
            raise DataError(f"{name} is not on this machine: `{listing.command}` makes it")
        return folder
    metadata = read_metadata(folder)
    if metadata is None:
        how = f"`transduce corpus get {name}` downloads it ({megabytes(listing.download)}"
        if not listing.public:
            how = (
                f"`transduce corpus get {name} --from DIR` makes it from its files ({listing.home}"
            )
        raise DataError(f"{name} is not on this machine: {how}, {listing.licence})")
    lost = next((file for file in metadata["files"] if not (folder / file).is_file()), None)
    if lost:
        raise DataError(f"{folder / lost} is missing: `transduce corpus get {name}` restores it")
    return folder


def check_language(name: str, language: str, languages: Sequence[str]) -> None:
    """Raise DataError unless a corpus has that language."""
    # deu is not a version of a text of which there are deu_1901 and deu_1996.
    near = [other for other in languages if other.split("_")[0] == language]
    if language not in languages and near:
        raise DataError(f"{name} has no {language}; there are {', '.join(near)}")
    check_choice("language", language, languages, name)


def check_choice(what: str, name: str, choices: Sequence[str], corpus: str = "") -> None:
    """Raise DataError unless it is one of the choices; the message names the nearest."""
    if name in choices:
        return
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {some_of(choices)}"
    lack = f"{corpus} has no {what} {name}" if corpus else f"there is no {what} named {name}"
    raise DataError(f"{lack}; {hint}")


def some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
