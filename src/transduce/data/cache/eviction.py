"""Cache eviction: the least recently used corpora are removed above a size limit."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

from transduce.storage import GB, gigabytes

VARIABLE = "TRANSDUCE_CACHE_GB"
MAX_GB = 50.0
DAY = 24 * 60 * 60
WHOLE = (".tokens.json", ".members.json")  # vocabularies, and indexes of archives


def note_use(*paths: Path) -> None:
    """Record that files were used just now; does nothing if the cache is not writable."""
    for path in paths:
        with suppress(OSError):
            os.utime(path)


def evict(folder: Path) -> list[str]:
    """Remove the least recently used entries while the cache is too large; a sentence if so.

    Nothing used within a day is removed: another run may be about to read it. A memory-mapped file
    stays readable for its run. Raises DataError where the variable holds no number.
    """
    maximum = gigabytes(VARIABLE, MAX_GB)
    found = sorted(_entries(folder), reverse=True)
    kept, removed, freed = 0, 0, 0
    for used, size, paths in found:
        if kept + size <= maximum or time.time() - used < DAY:
            kept += size
            continue
        for path in paths:
            with suppress(OSError):
                path.unlink()
        removed, freed = removed + 1, freed + size
    if not removed:
        return []
    noun = "corpus" if removed == 1 else "corpora"
    return [
        f"{removed} least recently used {noun} ({freed / GB:.1f} GB) removed from "
        f"the cache {folder}, which keeps {maximum / GB:g} GB; set {VARIABLE} to change that"
    ]


def _entries(folder: Path) -> list[tuple[float, int, list[Path]]]:
    """Last use, size and files of each corpus in the cache."""
    found = []
    for path in folder.glob("*"):
        if path.suffix == ".blocks":  # a copy for streaming, with its index
            paths = [path.with_suffix(".index.safetensors"), path]
        elif path.suffix == ".safetensors" or path.name.endswith(WHOLE):
            paths = [path]
        elif path.name.endswith(".filters.npy"):  # with the counts of what is left out
            paths = [path.with_suffix(".json"), path]
        elif path.suffix == ".samples":  # the JSON file is removed together with its samples
            paths = [path.with_suffix(".sounds.json"), path]
        else:
            continue
        with suppress(OSError):  # another run has removed it
            status = path.stat()
            found.append((status.st_mtime, status.st_size, paths))
    return found
