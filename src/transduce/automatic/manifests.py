"""Kaldi data folders and Lhotse manifests: one of them, or a folder with one for each part."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from transduce.automatic.columns import run_name
from transduce.automatic.found import Found
from transduce.automatic.siblings import OTHERS, TRAIN
from transduce.automatic.sound import sounds_found
from transduce.data.text.columns import read_rows
from transduce.data.text.manifests import is_kaldi, is_lhotse, manifest_kind
from transduce.errors import DataError

MAX_ROWS = 200_000  # that are looked at
TITLES = {"kaldi": "a Kaldi data folder", "lhotse": "a Lhotse manifest"}


def inspect_manifest(path: Path) -> Found | None:
    """What a folder or a file of Kaldi or Lhotse has; None: it is none. Raises DataError."""
    kind = manifest_kind(path)
    if kind == "lhotse":
        return _found(path, kind, {})
    if not path.is_dir():
        return None
    if kind == "kaldi":
        return replace(_found(path / "text", "kaldi", {}), name=run_name(path))
    folders = [one for one in sorted(path.iterdir()) if one.is_dir() and is_kaldi(one)]
    if folders:
        parts = _parts(path, {one.name: one / "text" for one in folders})
        return replace(_found(parts.pop("train"), "kaldi", parts), name=run_name(path))
    # Cuts have all in one; of supervisions, the recordings are beside them.
    for name in ("cuts", "supervisions"):
        files = [one for one in sorted(path.glob(f"*{name}*.jsonl*")) if is_lhotse(one)]
        if files:
            parts = _parts(path, {one.name: one for one in files})
            return replace(_found(parts.pop("train"), "lhotse", parts), name=run_name(path))
    return None


def _parts(folder: Path, files: Mapping[str, Path]) -> dict[str, Path]:
    """The lists of a folder by the part that their names say. Raises DataError."""
    found: dict[str, Path] = {}
    for part, words in {"train": TRAIN, **OTHERS}.items():
        named = [
            file
            for name, file in files.items()
            if {*words} & set(re.split(r"[._\-]", name.lower()))
        ]
        if len(named) > 1:
            names = ", ".join(name for name, file in files.items() if file in named)
            raise DataError(
                f"{folder} has several lists for {part} ({names}); give the one that is meant, or "
                f"write a recipe with a list of corpora"
            )
        if named:
            found[part] = named[0]
    if "train" not in found and len(files) == 1:
        found = {"train": next(iter(files.values()))}
    if "train" not in found:
        raise DataError(
            f"{folder} has {', '.join(list(files)[:5])}, and no name says which is for training; "
            f"give the one that is meant"
        )
    return found


def _found(path: Path, kind: str, others: Mapping[str, Path]) -> Found:
    columns = ["audio", "text", "start", "end"]
    if kind == "kaldi" and not path.is_file():
        raise DataError(f"{path.parent} has no text, which a Kaldi data folder needs")
    rows = [cells for _, cells in islice(read_rows(str(path), None, columns, kind), MAX_ROWS)]
    whole = len(rows) < MAX_ROWS
    folder = path.parent
    named: dict[str, dict[str, Any]] = {
        part: {"file": _relative(other, folder), "format": kind} for part, other in others.items()
    }
    title = folder.name if kind == "kaldi" else path.name
    beside = f", with {' and '.join(named)} beside it" if named else ""
    spans = [(start or "0", end) for _, _, start, end in rows]
    return sounds_found(
        path,
        {"file": path.name, "format": kind},
        [(audio, text) for audio, text, _, _ in rows],
        total=len(rows),
        whole=whole,
        seen=[f"{title}: {TITLES[kind]}{beside}."],
        warnings=[] if whole else [f"{path}: its first {MAX_ROWS:,} lines were looked at"],
        task="audio to text",
        others=named,
        spans=spans if all(end for _, end in spans) else None,
    )


def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path, folder)
