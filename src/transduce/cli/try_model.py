"""The command that commands print at their end: how a person tries the model."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transduce.recipe import Recipe


def run_command(place: str | Path, recipe: Recipe, tags: str | None = None) -> str:
    """The command that runs a model, with the tags that its sources need.

    tags: these, in place of those of the first training source.
    """
    if recipe.audio is not None:
        return f"transduce run {place} recording.wav"
    tags = tags if tags is not None else _first_tags(Path(place), recipe)
    return f'transduce run {place} "..."' + (f" --tag {shlex.quote(tags)}" if tags else "")


def _first_tags(folder: Path, recipe: Recipe) -> str:
    """The tags of the first training source; empty where it has none, or may not be read: a model
    of somebody else names its data, too."""
    from transduce.data.text.pairs import read_pairs
    from transduce.data.text.trust import check_reads
    from transduce.errors import TransduceError

    data = recipe.data
    try:
        check_reads(folder, data, data, data.train)
        first = next(iter(read_pairs(data.train, data.folder)), None)
    except TransduceError:  # the corpus may be gone by now
        return ""
    return ";".join(first.tags) if first is not None else ""
