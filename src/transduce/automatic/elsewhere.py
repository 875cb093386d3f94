"""Tables that name recordings without their folder or ending, or where they once were: of Common
Voice, LJSpeech, or moved to this machine. A table with their paths is written beside such a one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath

from transduce.automatic.columns import SHOWN, SOUND_ENDINGS, format_by_name
from transduce.automatic.rewrite import PREFIX, line_of
from transduce.automatic.sample import Table, sample_table
from transduce.automatic.siblings import siblings
from transduce.data.text.columns import read_rows
from transduce.errors import CheckpointError, DataError
from transduce.storage import expanded, write_file

MAX_FILES = 200_000
DEEPEST = 4  # folders within each other
TABLES = ("tsv", "csv", "jsonl", "parquet")
LOOKED_FOR = 50  # recordings of a table, to see whether its paths are right
LONGEST_NAME = 60  # characters: a file's name has 255 bytes at most
# Folders of recordings beside a table.
FOLDERS = ("wavs", "wav", "clips", "audio", "recordings", "flac", "mp3", "sounds")


def files_below(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """The files below a folder, in the same order everywhere; hidden ones are left out."""
    try:
        entries = sorted(folder.iterdir(), key=lambda path: path.name)
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror or error}") from None
    for entry in entries:
        if entry.name.startswith((".", PREFIX)):
            continue
        if entry.is_dir():
            if depth and not entry.is_symlink():
                yield from files_below(entry, depth - 1)
        elif entry.is_file():
            yield entry


def with_paths(path: Path, table: Table) -> Path | None:
    """The table with the paths of its recordings, where it has not got them, but they are below its
    folder; it and those of the other parts are written. None: it has them, or names none."""
    if path.name.startswith(PREFIX):
        return None
    folder = path.parent
    place = _column_of_recordings(folder, table)
    if place is None:
        return None
    cells = [cell for cell in table.column(place)[:SHOWN] if cell]
    known = Places(folder)
    if 2 * sum(known.of(cell) is not None for cell in cells) <= len(cells):
        return None
    written = _written(path, table, place, known)
    for name in {one["file"] for one in siblings(path, {"file": path.name}).values()}:
        beside = folder / name
        other = sample_table(beside, table.format)
        if other.names == table.names and other.width == table.width:
            its = known if beside.parent == folder else Places(beside.parent)
            _written(beside, other, place, its)
    return written


def _column_of_recordings(folder: Path, table: Table) -> int | None:
    """The column that names recordings that are not where it says, if there is one."""
    beside = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    for place in range(table.width):
        cells = [cell.strip() for cell in table.column(place)[:LOOKED_FOR] if cell.strip()]
        named = [cell for cell in cells if cell.lower().endswith(SOUND_ENDINGS)]
        if 2 * len(named) > len(cells):
            there = sum((folder / expanded(cell)).is_file() for cell in named)
            away = 2 * there < len(named) and "://" not in named[0]
            return place if away else None
    for place in range(table.width):
        cells = [cell.strip() for cell in table.column(place)[:LOOKED_FOR]]
        if any(" " in cell or not cell or len(cell) > LONGEST_NAME for cell in cells[:4]):
            continue
        if any(
            (one / f"{cells[0]}{ending}").is_file() for one in beside for ending in SOUND_ENDINGS
        ):
            return place
    return None


class Places:
    """Where the recordings below a folder are, by the ends of their paths, with and without their
    ending: a/b.wav, b.wav, b."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, str | None] = {}
        for sound in islice(files_below(folder), MAX_FILES):
            if sound.suffix.lower() not in SOUND_ENDINGS:
                continue
            path = sound.relative_to(folder)
            place = path.as_posix()
            for name in (path, path.with_suffix("")):
                for end in _ends(name.parts):
                    # Of two recordings with one name, it says nothing.
                    self._places[end] = None if self._places.get(end, place) != place else place

    def of(self, cell: str) -> str | None:
        """The path of a recording; None where there is none, or several may be meant."""
        path = PurePosixPath(cell.strip().replace("\\", "/"))
        for name in (path, path.with_suffix("")) if path.name else ():
            for end in _ends(name.parts):
                if (place := self._places.get(end)) is not None:
                    return place
        return None


def _ends(parts: Sequence[str]) -> Iterator[str]:
    """The ends of a path, the longest first."""
    for first in range(len(parts)):
        yield "/".join(parts[first:])


def _written(path: Path, table: Table, place: int, known: Places) -> Path:
    """The table with these paths and all other columns; recordings that are missing are in it, too,
    so that they are said."""
    paths = map(known.of, table.column(place))
    ending = next((Path(one).suffix for one in paths if one is not None), "")
    named = table.names or [f"text{number}" for number in range(table.width)]
    keys: Sequence[int | str] = table.names or list(range(table.width))
    others = [other for other in range(table.width) if other != place]
    labels = list(map(str, keys))

    def lines() -> Iterator[str]:
        yield line_of(["path", *(named[other] for other in others)])
        header = None if table.names is None else True
        kind = table.format if format_by_name(path) != table.format else None
        for _, cells in read_rows(
            path.name, str(path.parent), keys, kind, header, numbers=True, labels=labels
        ):
            if cells[place].strip():
                found = known.of(cells[place]) or _with_ending(cells[place], ending)
                yield line_of([found, *(cells[other] for other in others)])

    new = path.with_name(f"{PREFIX}{path.name.split('.')[0]}.tsv")
    try:
        write_file(new, lambda part: _write_lines(part, lines()))
    except CheckpointError as error:
        raise DataError(
            f"{path.name} names recordings that are in another folder, and a table with their "
            f"paths is written beside it: {error}"
        ) from None
    return new


def _with_ending(cell: str, ending: str) -> str:
    return cell if cell.strip().lower().endswith(SOUND_ENDINGS) else f"{cell.strip()}{ending}"


def _write_lines(part: Path, lines: Iterable[str]) -> None:
    with part.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
