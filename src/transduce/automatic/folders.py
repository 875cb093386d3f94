"""A folder: sound with a table, with a text beside each file, or with a folder for each label; text
with a folder for each label; or files of a training, a validation and a test set. The first two may
be in folders for each part, as in train/yes/1.wav.

Where no table is there, or one without paths, a table is written into the folder, so that the
recipe can name it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from transduce.automatic.columns import (
    SHOWN,
    SOUND_ENDINGS,
    SPLITS,
    column_of,
    format_by_name,
    run_name,
)
from transduce.automatic.found import Found
from transduce.automatic.pairs import pairs_found
from transduce.automatic.rewrite import PREFIX
from transduce.automatic.sample import Table, sample_table
from transduce.automatic.siblings import TRAIN, Parts, parts_of
from transduce.automatic.sound import sounds_found
from transduce.data.text.columns import FORMATS
from transduce.errors import DataError
from transduce.storage import write_text

LIST = f"{PREFIX}list.tsv"
"""The table that is written into a folder without one; it is made anew each time."""
TEXT_ENDINGS = (".txt", ".lab", ".trn", ".transcript")
MAX_FILES = 200_000
DEEPEST = 4  # folders within each other
LONGEST_TEXT = 1 << 20  # bytes of a file that is the text of a row


def inspect_folder(folder: Path, asked: str | None = None) -> Found | Path:
    """What a folder holds, or the file of it that is to be looked at. Raises DataError.

    asked: the task, where the person has said it.
    """
    files = list(islice(_files(folder), MAX_FILES))
    sounds = [file for file in files if file.suffix.lower() in SOUND_ENDINGS]
    tables = [file for file in files if file.parent == folder and _is_table(file)]
    training = _training(tables or [file for file in files if file.parent == folder])
    if training is not None and (not sounds or training in tables):
        return training
    if not sounds:
        return _texts(folder, files)
    if len(tables) == 1:
        return _with_paths(folder, tables[0], sounds) or tables[0]
    if len(tables) > 1:
        names = ", ".join(table.name for table in tables[:5])
        raise DataError(f"{folder} has several tables ({names}); give the one that is meant")
    texts = _texts_beside(sounds)
    if 2 * len(texts) >= len(sounds):
        rows = [(str(sound.relative_to(folder)), text) for sound, text in texts.items()]
        parts = _parts(folder, list(texts), 1)
        without = len(sounds) - len(texts)
        return _listed(folder, rows, parts, "a text beside each file", "text", without, asked)
    labels = {sound: sound.relative_to(folder).parts[:-1] for sound in sounds}
    if all(labels.values()) and len({parts[-1] for parts in labels.values()}) > 1:
        rows = [(str(sound.relative_to(folder)), names[-1]) for sound, names in labels.items()]
        parts = _parts(folder, list(labels), 2)
        return _listed(folder, rows, parts, "a folder for each label", "label", 0, asked)
    raise DataError(
        f"{folder} has {len(sounds):,} recordings and nothing that says what is in them; put a "
        f"table with the columns path and text there, a .txt with the same name beside each, or "
        f"each label's recordings in a folder of its own"
    )


def _files(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
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
                yield from _files(entry, depth - 1)
        elif entry.is_file():
            yield entry


def _is_table(file: Path) -> bool:
    return Path(file.name.removesuffix(".gz").removesuffix(".xz")).suffix in FORMATS


def _training(files: list[Path]) -> Path | None:
    """The file of the training set, if its name says so."""
    named = list(filter(_is_training, files))
    if len(named) == 2 and not any(map(_is_table, named)):
        return None
    return named[0] if len(named) == 1 else None


def _is_training(file: Path) -> bool:
    return bool(set(re.split(r"[._\-]", file.name.lower())) & set(TRAIN))


def _with_paths(folder: Path, file: Path, sounds: list[Path]) -> Path | None:
    """The table with a column of paths, where it names recordings without their folder or ending,
    as in `utt-7`; None: it has paths, or names none."""
    places: dict[str, str] = {}
    for sound in sounds:
        path = sound.relative_to(folder)
        places |= {str(path.with_suffix("")): str(path), sound.name: str(path)}
        places.setdefault(sound.stem, str(path))
    kind = format_by_name(file)
    if kind not in ("tsv", "csv", "jsonl", "parquet"):
        return None
    table = sample_table(file, kind)
    for place in range(table.width):
        cells = [cell.strip() for cell in table.column(place)]
        if 2 * sum((folder / cell).is_file() for cell in cells[:SHOWN]) > len(cells[:SHOWN]):
            return None
        if 2 * sum(cell in places for cell in cells) <= len(cells):
            continue
        others = [other for other in range(table.width) if other != place]
        named = table.names or [f"text{number}" for number in range(table.width)]
        rows = [
            (places[cell], *(" ".join(row[other].split()) for other in others))
            for cell, row in zip(cells, table.rows, strict=True)
            if cell in places
        ]
        _write_list(folder, ["path", *(named[other] for other in others)], rows)
        return folder / LIST
    return None


def _texts_beside(sounds: list[Path]) -> dict[Path, str]:
    found = {}
    for sound in sounds:
        for ending in TEXT_ENDINGS:
            beside = sound.with_suffix(ending)
            if beside.is_file():
                found[sound] = _one_line(beside)
                break
    return found


def _one_line(file: Path) -> str:
    """The text of a file as a cell of a table."""
    with file.open("rb") as opened:
        raw = opened.read(LONGEST_TEXT)
    try:
        return " ".join(raw.decode("utf-8-sig").split())
    except UnicodeDecodeError:
        raise DataError(f"{file} is not UTF-8; convert it, for example with iconv") from None


def _parts(folder: Path, files: list[Path], within: int) -> list[str]:
    """The part of each file, where the first of at least `within` folders says it of all of them:
    train/yes/1.wav. Empty: there are no such folders."""
    folders = [file.relative_to(folder).parts[:-1] for file in files]
    if not all(len(names) >= within and names[0].lower() in SPLITS for names in folders):
        return []
    return [names[0] for names in folders]


def _write(
    folder: Path, corpus: dict[str, Any], rows: Sequence[tuple[str, str]], parts: list[str]
) -> Parts:
    """Write rows as the table of a folder, with the part of each, if there are parts."""
    header = [corpus.get("audio", corpus.get("source")), corpus["target"]]
    listed = [list(row) for row in rows]
    if parts:
        header.append("split")
        listed = [[*row, part] for row, part in zip(rows, parts, strict=True)]
    _write_list(folder, header, listed)
    column = column_of(2, "split", parts) if parts else None
    return parts_of(folder / LIST, Table("tsv", header, listed, len(rows), True), corpus, column)


def _listed(
    folder: Path,
    rows: list[tuple[str, str]],
    parts: list[str],
    how: str,
    column: str,
    without: int,
    asked: str | None,
) -> Found:
    kind = column_of(1, column, [text for _, text in rows]).kind
    label = kind == "label" if asked is None else asked == "classify"
    seen = [f"{folder.name}: recordings with {how}; they are listed in {folder / LIST}."]
    if label and column == "text" and asked is None:
        seen.append("The texts repeat, so they are labels (to write them: task=transduce).")
    corpus = {"file": LIST, "audio": "path", "target": column}
    written = _write(folder, corpus, rows, parts)
    warnings = []
    if without:
        warnings.append(f"{without:,} recordings have no text beside them; they are left out")
    return sounds_found(
        folder,
        written.corpus,
        [(row[0], row[1]) for row in written.table.rows],
        total=len(written.table.rows),
        whole=True,
        seen=[*seen, *written.seen],
        warnings=warnings,
        task="audio to label" if label else "audio to text",
        others=written.others,
    )


def _texts(folder: Path, files: list[Path]) -> Found:
    """A folder of texts for each label."""
    texts = [file for file in files if file.suffix == ".txt" and file.parent != folder]
    labels = {file.parent.name for file in texts}
    if len(texts) < len(files) / 2 or len(labels) < 2:
        named = [file.name for file in files if file.parent == folder and _is_training(file)]
        if len(named) > 1:
            raise DataError(
                f"{folder} has several files of a training set ({', '.join(named[:5])}); give the "
                f"one that is meant, or two of which line n of one belongs to line n of the other"
            )
        names = ", ".join(file.name for file in files[:5]) or "nothing"
        raise DataError(
            f"{folder} is a folder without a run in it, and neither recordings nor a training set "
            f"(there is: {names}); give a file of data, a recipe file or a run directory"
        )
    rows = [(_one_line(file), file.parent.name) for file in texts]
    corpus = {"file": LIST, "source": "text", "target": "label"}
    written = _write(folder, corpus, rows, _parts(folder, texts, 2))
    seen = f"{folder.name}: a folder of texts for each label; all are in {folder / LIST}."
    return pairs_found(
        folder / LIST,
        written.corpus,
        [(row[0], row[1], "") for row in written.table.rows],
        total=len(written.table.rows),
        whole=True,
        seen=[seen, *written.seen],
        task="text to label",
        others=written.others,
        name=run_name(folder),
    )


def _write_list(folder: Path, header: list[str], rows: Sequence[Sequence[str]]) -> None:
    for cell in (cell for row in rows for cell in row if "\t" in cell or "\n" in cell):
        raise DataError(f"{folder}: {cell!r} has a tab or a line break in its name; rename it")
    lines = ["\t".join(row) for row in [header, *rows]]
    write_text(folder / LIST, "\n".join(lines) + "\n")
