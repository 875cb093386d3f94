"""The other parts: validation and test files beside a training file, by their names; or rows of the
same table, by a column that says in which part each row is.

train.tsv has valid.tsv or dev.tsv; x_train.tsv.gz has x_dev.tsv.gz; x.tsv has x.dev.tsv;
x_small.train has x.dev and x.gold; train.en and train.de have valid.en and valid.de;
train/metadata.csv has test/metadata.csv.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transduce.automatic.columns import Column
from transduce.automatic.sample import Table, sample_table
from transduce.errors import DataError

TRAIN = ("train", "training", "trn")
OTHERS = {
    "valid": ("valid", "validation", "val", "dev", "devel", "development", "testa"),
    # gold: the answers, where a file called test has none
    "test": ("gold", "test", "tst", "eval", "evaluation", "testb"),
}
LANGUAGE = re.compile(r"\.[a-z]{2,3}([_\-][A-Za-z]{2,4})?")
ENDING = re.compile(r"\.(tsv|csv|jsonl|ndjson|json|parquet|xlsx|ods)(\.gz|\.xz)?$", re.IGNORECASE)
FILES = ("file", "source", "target", "text")


def languages_beside(path: Path) -> list[Path]:
    """A file such as corpus.en, and those beside it that are called the same in other languages,
    such as corpus.de; empty: there are none."""
    ending = path.suffix if path.suffix not in (".gz", ".xz") else "".join(path.suffixes[-2:])
    packed = ending[len(ending.removesuffix(".gz").removesuffix(".xz")) :]
    if not LANGUAGE.fullmatch(ending.removesuffix(packed)):
        return []
    stem = path.name.removesuffix(ending)
    others = [
        other
        for other in sorted(path.parent.iterdir())
        if other.name.startswith(f"{stem}.")
        and other.name.endswith(packed)
        and LANGUAGE.fullmatch(other.name.removeprefix(stem).removesuffix(packed))
        and other.suffix not in (".txt", ".tsv", ".csv", ".md", ".wav")
    ]
    return [path, *(other for other in others if other != path)] if len(others) > 1 else []


def siblings(path: Path, corpus: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The corpora valid and test, of those whose files are there; `corpus` is that of training.
    Names of files in another folder begin with ../ there."""
    named = "file" if "file" in corpus else "text" if "text" in corpus else None
    keys = [named] if named is not None else ["source", "target"]
    found = {}
    for part, words in OTHERS.items():
        for beside in (_sibling, _in_other_folder):
            every = ({key: beside(path.parent, str(corpus[key]), w) for key in keys} for w in words)
            names = next((names for names in every if all(names.values())), None)
            if names is not None:
                found[part] = {**corpus, **names}
                break
    return found


@dataclass(frozen=True)
class Parts:
    """The rows to train on, and where the others are."""

    table: Table
    """The rows to train on."""
    corpus: dict[str, Any]
    others: dict[str, dict[str, Any]]
    """The corpora valid and test, of those that are there."""
    seen: list[str]


def parts_of(path: Path, table: Table, corpus: dict[str, Any], column: Column | None) -> Parts:
    """The parts by a column of the table, if there is one and it names rows to train on and others;
    else by the names of files."""
    cells = [] if column is None else [cell.strip() for cell in table.column(column.place)]
    values = {
        part: sorted({cell for cell in cells if cell.lower() in words})
        for part, words in {"train": TRAIN, **OTHERS}.items()
    }
    named = {part: found for part, found in values.items() if found}
    if column is None or "train" not in named or len(named) == 1:
        others, lacking = siblings(path, corpus), []
        for part, other in [*others.items()]:
            if lacks := _lacking(path.parent / other["file"], table.format, corpus):
                del others[part]
                lacking.append(f"{other['file']} beside it {lacks}, so it is not used.")
        return Parts(table, corpus, others, lacking)
    corpora = {
        part: {**corpus, "where": {"column": column.key, "value": _one_or_all(found)}}
        for part, found in named.items()
    }
    counts = {part: sum(cell in found for cell in cells) for part, found in named.items()}
    rows = [row for row, cell in zip(table.rows, cells, strict=True) if cell in named["train"]]
    shares = ", ".join(f"{part} {100 * count / len(cells):.0f} %" for part, count in counts.items())
    total = round(table.total * len(rows) / max(len(cells), 1))
    seen = [f"The parts are those of {column.title}: {shares} of the rows."]
    train = corpora.pop("train")
    return Parts(replace(table, rows=rows, total=total), train, corpora, seen)


def _lacking(path: Path, kind: str, corpus: Mapping[str, Any]) -> str:
    """What the table of another part has not, in words, such as the targets, which those that are
    to be predicted do not have; empty: it has all columns, or is damaged, which is said later."""
    wanted = {key: corpus[key] for key in ("source", "audio", "target", "tags") if key in corpus}
    named = any(isinstance(name, str) for name in wanted.values())
    try:
        table = sample_table(path, kind, True if named else corpus.get("header"))
    except DataError:
        return ""
    for key, name in wanted.items():
        there = table.names or [] if isinstance(name, str) else range(table.width)
        if name not in there:
            return f"has no column {name}"
        cells = table.column([*there].index(name))
        if key == "target" and not any(map(str.strip, cells)):
            return f"has no text in {name if isinstance(name, str) else f'column {name}'}"
    return ""


def _one_or_all(values: list[str]) -> str | list[str]:
    return values[0] if len(values) == 1 else values


def in_other_forms(path: Path, parts: Mapping[str, object]) -> list[str]:
    """A warning of each file beside a table that is called as that of a part which is not there,
    but for its ending."""
    stem, ending = _without_ending(path.name)
    if not ending:
        return []
    there: dict[str, list[str]] = {}
    for name in sorted(other.name for other in path.parent.iterdir() if other.is_file()):
        there.setdefault(_without_ending(name)[0], []).append(name)
    return [
        f"{name} beside it is not used, as it has another form; save it as {other}{ending}"
        for part, words in OTHERS.items()
        if part not in parts
        for word in words
        for other in _names(stem, word)
        for name in there.get(other, [])
        if _without_ending(name)[1] != ending  # else it is of this form, and was not used
    ]


def _without_ending(name: str) -> tuple[str, str]:
    """The name of a table without its ending, and this one; empty: it has none of a table."""
    found = ENDING.search(name)
    return (name, "") if found is None else (name[: found.start()], found[0])


def _sibling(folder: Path, name: str, word: str) -> str | None:
    """The file of that name with another word in place of train; None: there is none."""
    tried = _names(name, word)
    return next((one for one in tried if one != name and (folder / one).is_file()), None)


def _in_other_folder(folder: Path, name: str, word: str) -> str | None:
    """The file of that name in a folder that has another word in place of train; None: there is
    none, or this folder is not called so."""
    if not is_of_training(folder):
        return None
    tried = (Path(other, name) for other in _names(folder.name, word) if other != folder.name)
    return next((f"../{one.as_posix()}" for one in tried if (folder.parent / one).is_file()), None)


def is_of_training(path: Path) -> bool:
    """Whether the name of a file or folder says so."""
    return bool(set(re.split(r"[._\-]", path.name.lower())) & set(TRAIN))


def _names(name: str, word: str) -> list[str]:
    """How a file may be called that has this word in place of train."""
    pieces = re.split(r"([._\-])", name)
    places = [place for place, piece in enumerate(pieces) if piece.lower() in TRAIN]
    tried = []
    if places:
        place = places[-1]
        for spelt in (word, word.upper(), word.capitalize()):
            tried.append("".join([*pieces[:place], spelt, *pieces[place + 1 :]]))
        if place >= 4:  # x_small.train has x.dev
            tried.append(
                "".join(
                    [*pieces[: place - 3], *pieces[place - 1 : place], word, *pieces[place + 1 :]]
                )
            )
    else:
        first, *rest = name.split(".")
        ending = "." + ".".join(rest) if rest else ""
        tried += [f"{first}{sign}{word}{ending}" for sign in "._-"]
    return tried
