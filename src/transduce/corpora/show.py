"""Command-line output about corpora: the list, and the progress of a download."""

from __future__ import annotations

import sys
from pathlib import Path

from transduce.corpora.catalogue import FETCHED, listing_of
from transduce.corpora.entry import Listing, megabytes
from transduce.corpora.fetch import get
from transduce.corpora.generated import MADE
from transduce.corpora.location import corpora_folder, read_metadata
from transduce.errors import DataError
from transduce.terminal import aligned
from transduce.terminal import console as make_console


def print_corpora() -> None:
    """Print each corpus that a recipe can name: whether it is here, its size and licence."""
    shelf = corpora_folder()
    rows = []
    for name, make in MADE.items():
        rows.append((name, "here", "", "", (make.__doc__ or "").partition("\n")[0]))
    for name, listing in FETCHED.items():
        made = bool(listing.command) and bool(listing.languages(shelf / name))
        here = "here" if made or read_metadata(shelf / name) else ""
        fetched = megabytes(listing.download) if listing.public else "--from"
        fetched = "made here" if listing.command else fetched
        rows.append((name, here, fetched, listing.licence, listing.about))
    rows = [("corpus", "", "to fetch", "licence", ""), *sorted(rows)]
    print("\n".join(aligned(rows, left=5)))
    print(f"\nGet one:  transduce corpus get NAME     They are kept in {shelf}")


def get_and_print(name: str, local: Path | None, to: Path | None) -> None:
    """Print what a corpus is and its licence, get it, and print how to use it."""
    listing = listing_of(name)
    if listing is None:
        print(f"{name} comes with transduce; there is nothing to get.")
        return
    if listing.command:
        raise DataError(f"{name} is not downloaded: `{listing.command}` makes it")
    shelf = to or corpora_folder()
    place = (shelf / name).absolute()
    print(f"{name}: {listing.about}")
    print(f"  licence:  {listing.terms}")
    print(f"  home:     {listing.home}")
    origin = f"{megabytes(listing.download)} to download" if listing.public else "its files"
    origin = origin if local is None else f"from {local}"
    print(f"  size:     {origin}, {megabytes(listing.size)} on disk")
    print(f"  goes to:  {place}", flush=True)
    new = _get(listing, shelf, local)
    outcome = "Done" if new else "It was there already, and is intact"
    counts = ", ".join(f"{split} {count:,}" for split, count in listing.splits.items())
    print(f"{outcome}: {counts} {listing.unit}.")
    choice = f", {listing.key}: {listing.example}" if listing.key else ""
    print(f"In a recipe: train: {{name: {name}, split: train{choice}}}")
    if shelf.absolute() != corpora_folder().absolute():
        print(f"For recipes to find it there: export TRANSDUCE_DATA={shelf.absolute()}")


def _get(listing: Listing, shelf: Path, local: Path | None) -> bool:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    bar = Progress(
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=make_console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("", total=listing.download if local is None else None)

    def on_progress(file: str, there: int) -> None:
        bar.update(task, description=file, completed=there)

    with bar:
        return get(listing, shelf, local, on_progress)
