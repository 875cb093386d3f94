"""Where corpora are stored, and whether one is there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any

from transduce.errors import DataError
from transduce.storage import default_cache_folder, expanded

FORMAT = 1  # format version: increase when the files of any corpus change
FACTS = "corpus.json"


def corpora_folder() -> Path:
    """$TRANSDUCE_DATA, or the folder corpora in transduce's cache."""
    given = os.environ.get("TRANSDUCE_DATA")
    return expanded(given) if given else default_cache_folder() / "corpora"


def read_facts(folder: Path) -> dict[str, Any] | None:
    """The stored metadata of a corpus folder; None if there is none in the current format."""
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        return dict(facts) if facts["format"] == FORMAT and facts["files"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def facts_of(folder: Path, **more: Any) -> dict[str, Any]:
    """Metadata of a corpus that has just been made."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = {path.relative_to(folder).as_posix(): _sum(path) for path in files}
    return {**more, "format": FORMAT, "files": sums}


def check_place(folder: Path) -> None:
    """Raise DataError if a corpus cannot be put there without removing a user's own files."""
    facts = read_facts(folder)
    if not folder.exists() or (facts is None and (folder / FACTS).is_file()):
        return  # damaged, or of an older format: it does not say which files are its own
    found = [path for path in folder.rglob("*") if not path.is_dir()]
    names = {path.relative_to(folder).as_posix() for path in found} - {FACTS}
    if others := sorted(names - set(facts["files"] if facts else ())):
        raise DataError(
            f"{folder} holds other files, such as {others[0]}; move them, or choose another place "
            f"with --output"
        )


def is_intact(folder: Path) -> bool:
    """Whether the corpus in a folder is unchanged, byte for byte."""
    facts = read_facts(folder)
    if facts is None:
        return False
    files: Mapping[str, str] = facts["files"]
    try:
        return all(_sum(folder / name) == expected for name, expected in files.items())
    except OSError:
        return False


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
