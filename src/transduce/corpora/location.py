"""Where corpora are kept, and whether one is there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any

from transduce.errors import DataError
from transduce.storage import default_cache_folder, expanded

FORMAT = 1  # raise when the files of any corpus change
FACTS = "corpus.json"


def corpora_folder() -> Path:
    """$TRANSDUCE_DATA, or the folder corpora in transduce's cache."""
    told = os.environ.get("TRANSDUCE_DATA")
    return expanded(told) if told else default_cache_folder() / "corpora"


def read_facts(folder: Path) -> dict[str, Any] | None:
    """What was written down of the corpus in a folder; None where there is none of today's form."""
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
        return dict(facts) if facts["format"] == FORMAT and facts["files"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def facts_of(folder: Path, **more: Any) -> dict[str, Any]:
    """What to write down of a corpus that has just been made."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = {path.relative_to(folder).as_posix(): _sum(path) for path in files}
    return {**more, "format": FORMAT, "files": sums}


def check_place(folder: Path) -> None:
    """Raise DataError where a corpus cannot be put without removing files of somebody's own."""
    facts = read_facts(folder)
    if not folder.exists() or (facts is None and (folder / FACTS).is_file()):
        return  # damaged, or of an older form: it cannot tell which files are its own
    found = [path for path in folder.rglob("*") if not path.is_dir()]
    names = {path.relative_to(folder).as_posix() for path in found} - {FACTS}
    if others := sorted(names - set(facts["files"] if facts else ())):
        raise DataError(
            f"{folder} holds other files, such as {others[0]}; move them, or choose another place "
            f"with --output"
        )


def is_whole(folder: Path) -> bool:
    """Whether the corpus in a folder is as it was made, to the byte."""
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
