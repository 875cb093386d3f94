"""Command-line output while a speech corpus is made."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from transduce.corpora.location import corpora_folder
from transduce.corpora.speech import READING_SPLITS, UDHR_SPOKEN
from transduce.synthesis.declaration import speak
from transduce.terminal import console as make_console


def speak_and_print(
    languages: Sequence[str], voices: int, shelf: Path | None, workers: int
) -> None:
    """Make the spoken Declaration, and print what there is and how to use it."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        "readings",
        TimeRemainingColumn(),
        console=make_console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("", total=None)

    def on_progress(code: str, done: int, total: int) -> None:
        bar.update(task, description=code, completed=done, total=total)

    with bar:
        made = speak(languages, voices, shelf, workers, on_progress)
    for place, new in made:
        print(f"{place.name}: {_counts(place)}; {place}" + ("" if new else " (existed already)"))
    print(
        f"In a recipe: train: {{name: {UDHR_SPOKEN.name}, split: train, language: {languages[0]}}}"
    )
    if shelf is not None and shelf.absolute() != corpora_folder().absolute():
        print(f"For recipes to find it there: export TRANSDUCE_DATA={shelf.absolute()}")


def _counts(place: Path) -> str:
    counts, seconds = [], 0.0
    for split in READING_SPLITS:
        rows = (place / f"{split}.tsv").read_text("utf-8").splitlines()[1:]
        counts.append(f"{split} {len(rows):,}")
        seconds += sum(float(row.rsplit("\t", 1)[1]) for row in rows)
    return ", ".join(counts) + f" recordings, {seconds / 60:.0f} minutes"
