"""A folder: sound with a table, with a text beside each file, or with a folder for each label; text
with a folder for each label; or files of a training, a validation and a test set. The first two may
be in folders for each part, as in train/yes/1.wav.

Where no table is there, or one without paths, a table is written into the folder, so that the
recipe can name it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from transduce.automatic.columns import (
    SOUND_ENDINGS,
    SPLITS,
    column_of,
    run_name,
)
from transduce.automatic.elsewhere import MAX_FILES, files_below
from transduce.automatic.found import Found
from transduce.automatic.pairs import pairs_found
from transduce.automatic.rewrite import PREFIX
from transduce.automatic.sample import Table
from transduce.automatic.siblings import (
    Parts,
    is_of_training,
    languages_beside,
    parts_of,
)
from transduce.automatic.sound import sounds_found
from transduce.data.text.columns import FORMATS
from transduce.errors import DataError
from transduce.storage import write_text

LIST = f"{PREFIX}list.tsv"
"""The table that is written into a folder without one; it is made anew each time."""
TEXT_ENDINGS = (".txt", ".lab", ".trn", ".transcript")
LONGEST_TEXT = 1 << 20  # bytes of a file that is the text of a row


def inspect_folder(folder: Path, asked: str | None = None) -> Found | Path:
    """What a folder holds, or the file of it that is to be looked at. Raises DataError.

    asked: the task, where the person has said it.
    """
    files = list(islice(files_below(folder), MAX_FILES))
    sounds = [file for file in files if file.suffix.lower() in SOUND_ENDINGS]
    tables = [file for file in files if file.parent == folder and _is_table(file)]
    training = _training(tables or [file for file in files if file.parent == folder])
    if training is not None and (not sounds or training in tables):
        return training
    if len(tables) == 1 and sounds:
        return tables[0]
    within = [file for file in files if file.parent.parent == folder and _is_table(file)]
    within = [table for table in within if is_of_training(table.parent)]
    if len(within) == 1 and not tables:  # train/metadata.csv
        return within[0]
    if not sounds:
        return _texts(folder, files)
    validated = [table for table in tables if table.name == "validated.tsv"]  # of Common Voice
    if validated:
        return validated[0]
    if len(tables) > 1:
        names = ", ".join(table.name for table in tables[:5])
        raise DataError(f"{folder} has several tables ({names}); give the one that is meant")
    for texts, how in (
        (_texts_beside(sounds), "a text beside each file"),
        (_in_transcripts(files, sounds), "their texts in files of transcripts"),
    ):
        if 2 * len(texts) >= len(sounds):
            rows = [(str(sound.relative_to(folder)), text) for sound, text in texts.items()]
            parts = _parts(folder, list(texts), 1)
            without = len(sounds) - len(texts)
            return _listed(folder, rows, parts, how, "text", without, asked)
    labels = {sound: sound.relative_to(folder).parts[:-1] for sound in sounds}
    # As Speech Commands has _background_noise_.
    others = sorted({parts[-1] for parts in labels.values() if parts and parts[-1][0] == "_"})
    labels = {sound: parts for sound, parts in labels.items() if not {*parts[-1:]} & {*others}}
    if all(labels.values()) and len({parts[-1] for parts in labels.values()}) > 1:
        rows = [(str(sound.relative_to(folder)), names[-1]) for sound, names in labels.items()]
        parts = _parts(folder, list(labels), 2) or _listed_parts(folder, list(labels))
        how = "a folder for each label"
        how += f" ({', '.join(others)} left out)" if others else ""
        return _listed(folder, rows, parts, how, "label", 0, asked)
    times = next((file for file in files if file.suffix.lower() in (".textgrid", ".eaf")), None)
    known = "nothing" if times is None else f"nothing that is read ({times.suffix} is not)"
    raise DataError(
        f"{folder} has {len(sounds):,} recordings and {known} that says what is in them; put a "
        f"table with the columns path and text there, a .txt with the same name beside each, or "
        f"each label's recordings in a folder of its own"
    )


def _is_table(file: Path) -> bool:
    return Path(file.name.removesuffix(".gz").removesuffix(".xz")).suffix in FORMATS


def _training(files: list[Path]) -> Path | None:
    """The file of the training set, if its name says so."""
    named = list(filter(is_of_training, files))
    if len(named) == 2 and not any(map(_is_table, named)):
        return None
    return named[0] if len(named) == 1 else None


def _texts_beside(sounds: list[Path]) -> dict[Path, str]:
    found = {}
    for sound in sounds:
        for ending in TEXT_ENDINGS:
            beside = sound.with_suffix(ending)
            if beside.is_file():
                found[sound] = _one_line(beside)
                break
    return found


MAX_TRANSCRIPTS = 1 << 26  # bytes of a file of transcripts


def _in_transcripts(files: Sequence[Path], sounds: Sequence[Path]) -> dict[Path, str]:
    """The texts by files of which each line has the name of a recording and its text, as
    LibriSpeech's 19-198.trans.txt has them beside the recordings."""
    beside = {(sound.parent, sound.stem): sound for sound in sounds}
    by_name = {sound.stem: sound for sound in sounds}
    by_name = {} if len(by_name) < len(sounds) else by_name  # names that repeat say nothing
    found: dict[Path, str] = {}
    for file in files:
        if file.suffix.lower() not in (*TEXT_ENDINGS, "") or file.stat().st_size > MAX_TRANSCRIPTS:
            continue
        try:
            lines = file.read_text("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            continue
        for line in lines:
            name, *rest = line.split(None, 1)[:2] or [""]
            stem = name.removesuffix(".wav").removesuffix(".flac")
            sound = beside.get((file.parent, stem)) or by_name.get(stem)
            if sound is not None and rest:
                found[sound] = " ".join(rest[0].split())
    return dict(sorted(found.items()))


def _listed_parts(folder: Path, files: list[Path]) -> list[str]:
    """The part of each file by lists of those of validation and test, as Speech Commands has them;
    empty: there are none."""
    lists = {"valid": folder / "validation_list.txt", "test": folder / "testing_list.txt"}
    if not all(file.is_file() for file in lists.values()):
        return []
    parts = {
        name.strip(): part
        for part, file in lists.items()
        for name in file.read_text("utf-8", "replace").splitlines()
    }
    return [parts.get(file.relative_to(folder).as_posix(), "train") for file in files]


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
    if not all(len(names) >= within for names in folders):
        return []
    # train, or train-clean-100 of LibriSpeech
    parts = [re.split(r"[._\-]", names[0].lower())[0] for names in folders]
    return parts if set(parts) <= SPLITS else []


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
        named = [file.name for file in files if file.parent == folder and is_of_training(file)]
        if len(named) > 1:
            raise DataError(
                f"{folder} has several files of a training set ({', '.join(named[:5])}); give the "
                f"one that is meant, or two of which line n of one belongs to line n of the other"
            )
        names = ", ".join(file.name for file in files[:5]) or "nothing"
        if both := languages_beside(files[0]) if files else []:
            raise DataError(
                f"{folder} has {' and '.join(one.name for one in both)}; to learn to translate, "
                f"give two of them, that of the sources first: transduce train {both[0]} {both[1]}"
            )
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
