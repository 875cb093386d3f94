"""What a file is: its format, columns and task, and the files of its validation and test sets.

One place decides each of them, by rules that a person can follow; what was decided is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from transduce.automatic.columns import (
    LABELS,
    OF_EACH_LABEL,
    SHOWN,
    SOUND_ENDINGS,
    Column,
    Roles,
    column_of,
    format_by_name,
    left_out,
    roles_of,
    run_name,
)
from transduce.automatic.elsewhere import with_paths
from transduce.automatic.folders import inspect_folder
from transduce.automatic.found import Found, Side, Task, count_of
from transduce.automatic.manifests import inspect_manifest
from transduce.automatic.pairs import FEWEST, pairs_found
from transduce.automatic.rewrite import PREFIX, named_as, rewritten, rewritten_pair
from transduce.automatic.sample import Lines, Table, sample_lines, sample_table
from transduce.automatic.siblings import languages_beside, parts_of, siblings
from transduce.automatic.sound import recordings
from transduce.data.text.columns import LOOKED_AT, separator_of
from transduce.data.text.conll import COLUMNS, Sentence, read_conll, read_sentences
from transduce.errors import DataError
from transduce.recipe.tasks import TASK_ALIASES

TABLES = ("tsv", "csv", "jsonl", "parquet")
_OTHERS = "xls numbers docx doc odt pdf rtf db sqlite sqlite3 pkl npy npz tbx xml html htm"
OTHER_PROGRAMS = frozenset(_OTHERS.split())
ARCHIVES = {"zip": "unzip", "tar": "tar xf", "tgz": "tar xf", "7z": "7z x", "rar": "unrar x"}
PACKED = {"zst": "zstd -d", "bz2": "bunzip2", "lz4": "lz4 -d", "z": "uncompress"}
ANNOTATIONS = {"textgrid": "Praat", "eaf": "ELAN"}
SENTENCE = 4  # words of a source, in the median: one word for it may be a label
LIKE_LABEL = 20  # characters of a target, in the mean: more without a space are a clause


def inspect(paths: Sequence[Path], hints: Mapping[str, Any] | None = None) -> Found:
    """What the files of a person are: one file, two parallel files, or a folder.

    hints: what the person says of it, by the keys task, source, target, tags, audio, header and
    format. Raises DataError with a sentence that says what was seen and what to give instead.
    """
    known = dict(hints or {})
    for path in paths:
        if not path.exists():
            raise DataError(f"there is no file {path}; correct the name")
    if len(paths) == 2:
        return _parallel(*paths)
    if len(paths) != 1:
        raise DataError(
            f"{len(paths)} files are given; give one table, or two files of which line n of one "
            f"belongs to line n of the other (test and validation files beside them are found by "
            f"their names)"
        )
    path = paths[0].absolute()
    if "format" not in known and (listed := inspect_manifest(path)) is not None:
        return listed
    if path.is_dir():
        found = inspect_folder(path, known.get("task"))
        if isinstance(found, Found):
            return found
        return replace(_inspect_file(found, known), name=run_name(path))  # not list, or train
    return _inspect_file(path, known)


def _inspect_file(path: Path, hints: Mapping[str, Any]) -> Found:
    """What one file is."""
    if "format" not in hints:
        refuse(path, format_by_name(path).lower())
    if (table := rewritten(path, hints)) is not None:
        known = hints if table.header is None else {**hints, "header": table.header}
        with named_as(path.name, table.path):
            found = _inspect_file(table.path, known)
        return replace(found, name=run_name(path), seen=[*table.seen, *found.seen])
    kind = str(hints.get("format") or format_of(path))
    if kind in TABLES:
        return _table(path, kind, hints)
    if kind in ("conllu", "conll"):
        return _tagged_words(path, kind, hints)
    return _running_text(path)


# ---------------------------------------------------------------------------------- the format


def format_of(path: Path) -> str:
    """tsv, csv, jsonl, parquet, conllu, conll or text: by the name, else by the first lines."""
    ending = format_by_name(path).lower()
    if ending in ("tsv", "jsonl", "parquet", "conllu", "conll"):
        return ending
    if ending == "ndjson":
        return "jsonl"
    if ending in ("iob", "iob2", "bio"):
        return "conll"
    lines = sample_lines(path).lines[:2000]
    if ending == "csv":
        _check_commas(path, lines)
        return "csv"
    filled = [line for line in lines if line.strip()]
    if not filled:
        raise DataError(f"{path.name} has only empty lines; give a file with text")
    if filled[0].lstrip().startswith(("{", "[")) and ending in ("json", "txt", ""):
        return "jsonl"
    if _looks_like_conll(lines):
        numbered = all(line.count("\t") == 9 for line in filled if not line.startswith("#"))
        return "conllu" if numbered else "conll"
    tabs = sum("\t" in line for line in filled)
    return "tsv" if 10 * tabs >= 9 * len(filled) else "text"


def refuse(path: Path, ending: str) -> None:
    """Raise DataError for a file that is no text, by its ending."""
    if path.suffix.lower() in SOUND_ENDINGS:
        raise DataError(
            f"{path.name} is one recording; give the folder that it is in, or a table that lists "
            f"recordings and their transcripts"
        )
    if ending in ARCHIVES or path.name.endswith(".tar.gz"):
        raise DataError(
            f"{path.name} is an archive; unpack it, and give the file or the folder that is meant: "
            f"{ARCHIVES.get(ending, 'tar xf')} {path.name}"
        )
    if ending in PACKED:
        raise DataError(
            f"{path.name} is compressed in a way that is not read; decompress it "
            f"(`{PACKED[ending]} {path.name}`), or compress it by gzip or xz"
        )
    if ending in ANNOTATIONS:
        raise DataError(
            f"{path.name} has the times of a recording, of {ANNOTATIONS[ending]}; write a table "
            f"with the columns path, start, end (in seconds) and text, a row for each utterance"
        )
    if ending in OTHER_PROGRAMS:
        raise DataError(
            f"{path.name} is a file of another program (.{ending}); save it as text there: a table "
            f"as CSV or TSV, running text as .txt, in UTF-8"
        )


def _check_commas(path: Path, lines: Sequence[str]) -> None:
    """Raise DataError for CSV with lines of another separator."""
    if separator_of(lines[:LOOKED_AT]) != ",":
        return
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    quoted = any('"' in line for line in lines)  # a cell in quotes may have lines without a comma
    without = [(number, line) for number, line in filled if "," not in line]
    if not quoted and 0 < 2 * len(without) < len(filled):
        number, line = without[0]
        other = next((f" (it has {sign!r} instead)" for sign in ";\t|" if sign in line), "")
        raise DataError(
            f"{path.name}:{number}: the line has no comma{other}, but most have one; separate the "
            f"cells by commas in every line"
        )


def _looks_like_conll(lines: Sequence[str]) -> bool:
    """Whether lines have as many columns each, and empty lines end sentences."""
    filled = [line for line in lines if line.strip() and not line.startswith(("#", "-DOCSTART-"))]
    empty = sum(not line.strip() for line in lines[:-1])
    if not empty or len(filled) < 2 * empty:
        return False
    widths = {len(line.split("\t") if "\t" in line else line.split()) for line in filled}
    return len(widths) == 1 and 2 <= widths.pop() <= 10


# --------------------------------------------------------------------------------------- tables


def _table(path: Path, kind: str, hints: Mapping[str, Any]) -> Found:
    table = sample_table(path, kind, hints.get("header"))
    named = {hints.get(role) for role in ("source", "target", "tags", "audio")}
    if table.names is None and "header" not in hints and named & {*table.rows[0]}:
        table = sample_table(path, kind, True)  # its first line has a name that the person gave
    if table.width == 1:
        if kind == "tsv" and _looks_like_conll(sample_lines(path).lines[:2000]):
            return _tagged_words(path, "conll", hints)
        if not any(cell.strip() for row in table.rows for cell in row):
            raise DataError(f"{path.name} has only empty lines; give a file with text")
        separator = {"tsv": "tabs", "csv": "commas"}.get(kind, "")
        if path.name.startswith(PREFIX):  # a sheet has no such signs
            separator = ""
        if kind == "tsv" and (other := _other_separator([row[0] for row in table.rows], ",")):
            raise DataError(
                f"{path.name} has one column (separated by tabs), and {other} in every line; write "
                f"tabs instead"
            )
        raise DataError(
            f"{path.name} has one column{f' (separated by {separator})' if separator else ''}; "
            f"give a table with a source and a target in each row, or running text in a file "
            f"whose name ends in .txt"
        )
    if (listed := with_paths(path, table)) is not None:
        names = {name: f"text{name}" for name in range(table.width)} if table.names is None else {}
        known = {key: names.get(hint, hint) for key, hint in hints.items() if key != "audio"}
        with named_as(path.name, listed):
            found = _inspect_file(listed, {**known, "header": True})
        seen = f"{path.name}: its recordings are elsewhere; with their paths it is {listed.name}."
        return replace(found, name=run_name(path), seen=[seen, *found.seen])
    # Of different rows: texts of rows that are there several times are no labels.
    different = table.different()
    columns = [
        column_of(place, table.name_of(place), different.column(place))
        for place in range(table.width)
    ]
    roles = roles_of(path, columns, hints)
    if roles.source.kind == "audio":
        return recordings(path, table, columns, roles, hints)
    return _pairs(path, table, columns, roles, hints)


# ---------------------------------------------------------------------------- text and its task


def _pairs(
    path: Path, table: Table, columns: Sequence[Column], roles: Roles, hints: Mapping[str, Any]
) -> Found:
    corpus: dict[str, Any] = {"file": path.name}
    if format_by_name(path) != table.format:
        corpus["format"] = table.format
    corpus |= {"source": roles.source.key, "target": roles.target.key}
    if roles.tags is not None:
        corpus["tags"] = roles.tags.key
    corpus |= table.header_for(corpus.values())
    what = f"{table.format.upper()} with {len(columns)} columns"
    what += ", a header" if table.names is not None and table.format in ("tsv", "csv") else ""
    parts = parts_of(path, table, corpus, roles.parts)
    rows = [
        (
            row[roles.source.place].strip(),
            row[roles.target.place].strip(),
            "" if roles.tags is None else row[roles.tags.place].strip(),
        )
        for row in parts.table.rows
    ]
    aim = f"{roles.source.title} → {roles.target.title}"
    if roles.tags is not None:
        aim += f", with the tags of {roles.tags.title}"
    seen = [f"{path.name}: {what}: {aim}.", *parts.seen, *left_out(columns, roles)]
    task = _task_of(path, roles, rows, hints)
    return pairs_found(
        path,
        parts.corpus,
        rows,
        total=parts.table.total,
        whole=table.whole,
        seen=seen,
        warnings=[
            *table.notes,
            *_in_quotes(table.format, rows),
            *_like_labels(roles, rows, task, hints),
            *_numbers(roles, task, hints),
            *_of_two_texts(columns, roles, task),
        ],
        task=task,
        others=parts.others,
    )


def _task_of(
    path: Path, roles: Roles, rows: Sequence[tuple[str, str, str]], hints: Mapping[str, Any]
) -> Task:
    """By what the person says, else by the targets: labels, a tag for each word, or text."""
    asked = hints.get("task")
    named: dict[str, Task] = {
        "classify": "text to label",
        "tag": "words to tags",
        "transduce": "text to text",
    }
    target = roles.target
    is_label = target.kind == "label"
    labelled = asked == "classify" or (asked is None and target.named(LABELS))
    # What is called a label may have fewer rows of each than values that only look like labels.
    is_label |= labelled and 2 * target.distinct <= target.filled
    if labelled and not is_label:
        raise DataError(
            f"{path.name}: {target.title} has {target.distinct:,} different values in "
            f"{target.filled:,} rows, so they are no labels, which repeat; give a column of labels "
            f"(data.train.target=NAME), or task=transduce to learn to write these texts"
        )
    if TASK_ALIASES.get(str(asked), asked) == "language_modeling":
        raise DataError(
            f"{path.name} is a table; a language model learns from running text, in a file whose "
            f"name ends in .txt"
        )
    if asked is not None and asked not in named:
        raise DataError(f"task is {asked}; for a table it must be one of {', '.join(named)}")
    if asked is not None:
        return named[asked]
    if _are_aligned(rows) and not labelled:  # tags of short sentences repeat as labels do
        return "words to tags"
    return "text to label" if is_label else "text to text"


def _in_quotes(kind: str, rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """A warning of TSV whose cells are in quotes, as some programs write it."""
    cells = [cell for row in rows[:SHOWN] for cell in row if cell]
    quoted = sum(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in cells)
    if kind != "tsv" or 10 * quoted < 9 * len(cells):
        return []
    return [
        "the cells are in double quotes, which are read as a part of the text; write it without "
        "them (in R: quote=FALSE), or as CSV"
    ]


def _like_labels(
    roles: Roles, rows: Sequence[tuple[str, str, str]], task: Task, hints: Mapping[str, Any]
) -> list[str]:
    """A warning where each text has a word that may be meant as a label, but is learnt as text."""
    target = roles.target
    if task != "text to text" or "task" in hints or roles.tags is not None or target.numeric:
        return []
    source = Side.of([source for source, _, _ in rows[:SHOWN]])
    written = Side.of([target for _, target, _ in rows[:SHOWN] if target])
    one_word = written.words.percentile_95 == 1 and written.piece_length <= LIKE_LABEL
    # A sentence in a script without spaces is one word too.
    translated = not {*written.scripts} <= {*source.scripts, "Latin"}
    if source.words.median < SENTENCE or not one_word or translated:
        return []
    different = f"{target.distinct:,} different values in {target.filled:,} rows"
    mended = f"give at least {OF_EACH_LABEL} rows of each, or another column "
    mended += "(data.train.target=NAME)"
    if 2 * target.distinct <= target.filled:
        mended = "say task=classify"
    return [
        f"{target.title} has {different}, so it is learnt as text, letter by letter, and not as "
        f"labels; if they are labels, {mended}; if not, task=transduce says so"
    ]


def _numbers(roles: Roles, task: Task, hints: Mapping[str, Any]) -> list[str]:
    """A warning of numbers that are written digit by digit."""
    target = roles.target
    if task != "text to text" or "task" in hints or not target.numeric:
        return []
    return [
        f"{target.title} has numbers, which are learnt as text, digit by digit: 9.99 is no nearer "
        f"to 10 than to 1; of measures, such as scores, make a few labels; if the digits are "
        f"meant, task=transduce says so"
    ]


def _of_two_texts(columns: Sequence[Column], roles: Roles, task: Task) -> list[str]:
    """A warning where labels may be of two texts, as of a premise and a hypothesis."""
    used = (roles.source, roles.target, roles.tags)
    left = [one.title for one in columns if one.kind == "text" and one not in used]
    if task != "text to label" or not left:
        return []
    return [
        f"only {roles.source.title} is read, and not {', '.join(left)}; if the label depends on "
        f"several texts, write them into one column"
    ]


def _are_aligned(rows: Sequence[tuple[str, str, str]]) -> bool:
    """Whether each word has a tag: as many of them in every row, and few different ones."""
    shown = [(source.split(), target.split()) for source, target, tag in rows[:SHOWN]]
    if any(len(source) != len(target) for source, target in shown):
        return False
    words = {word for source, _ in shown for word in source}
    tags = {tag for _, target in shown for tag in target}
    several = sum(len(source) > 1 for source, _ in shown)
    return 2 * several >= len(shown) and len(tags) <= 200 and 5 * len(tags) <= len(words)


# ----------------------------------------------------------------------------------- other files


def _parallel(first: Path, second: Path) -> Found:
    """Two files of which line n of one belongs to line n of the other."""
    first, second = first.absolute(), second.absolute()
    if (table := rewritten_pair(first, second)) is not None:
        with named_as(f"{first.name} and {second.name}", table.path):
            found = _inspect_file(table.path, {"header": table.header})
        name = run_name(table.path.with_name(table.path.name.removeprefix(PREFIX)))
        return replace(found, name=name, seen=[*table.seen, *found.seen])
    for path in (first, second):
        if path.is_dir() or format_by_name(path) in (*TABLES, "conllu", "conll"):
            raise DataError(
                f"{path.name} is {'a folder' if path.is_dir() else 'a table'}; of two files, line "
                f"n of one must belong to line n of the other: give plain text files, or one table"
            )
    samples = [sample_lines(path, stretches=False) for path in (first, second)]
    if all(sample.whole for sample in samples) and samples[0].total != samples[1].total:
        raise DataError(
            f"{first.name} has {samples[0].total:,} lines and {second.name} has "
            f"{samples[1].total:,}; line n of one must belong to line n of the other, so make them "
            f"equal"
        )
    whole = all(sample.whole for sample in samples)
    sides = [sample.lines for sample in samples]
    rows = [
        (source.strip(), target.strip(), "")
        for source, target in (
            zip_longest(*sides, fillvalue="") if whole else zip(*sides, strict=False)
        )
    ]
    if second.parent == first.parent:
        names = (first.name, second.name)
        others = siblings(first, {"source": first.name, "target": second.name})
    else:
        names, others = (str(first), str(second)), {}
    corpus = {"source": names[0], "target": names[1]}
    target = second.name
    seen = [f"{first.name} and {target}: two files, line by line."]
    return pairs_found(
        first,
        corpus,
        rows,
        total=samples[0].total,
        whole=whole,
        seen=seen,
        task="text to text",
        others=others,
        name=run_name(first.with_name(f"{first.name.split('.')[0]}-{_languages(first, second)}.x")),
    )


def _languages(first: Path, second: Path) -> str:
    return "-".join(format_by_name(path) for path in (first, second)).strip("-")


def _tagged_words(path: Path, kind: str, hints: Mapping[str, Any]) -> Found:
    """CoNLL-U or CoNLL: a tag for each word."""
    sample = sample_lines(path, stretches=False)
    lines = sample.lines
    corpus: dict[str, Any] = {"file": path.name}
    if format_by_name(path) != kind:
        corpus["format"] = kind
    if kind == "conllu":
        sentences = list(read_sentences(lines, path.name))
        asked = str(hints.get("target") or "")
        filled = [column for column in ("upos", "xpos") if _is_filled(sentences, column)]
        if not asked and not filled:
            raise DataError(
                f"{path.name}: some words have neither upos nor xpos; fill them in, or name "
                f"another column: data.train.target=NAME"
            )
        if asked and asked not in COLUMNS:
            raise DataError(
                f"{path.name}: there is no column {asked}; there are: {', '.join(COLUMNS)}"
            )
        column: Any = asked or filled[0]
        rows = [
            (" ".join(one.column("form")), " ".join(one.column(column)), "") for one in sentences
        ]
    else:
        width = _width_of_conll(lines)
        column = hints.get("target", width - 1)
        wanted = [int(hints.get("source", 0)), int(column)]
        rows = [(cells[0], cells[1], "") for _, cells in read_conll(lines, path.name, wanted)]
    corpus |= {"target": column}
    if len(rows) == 1 and len(lines) > 1:
        raise DataError(
            f"{path.name} is one sentence of {len(rows[0][0].split()):,} words; write an empty "
            f"line after each sentence"
        )
    total = round(len(rows) * sample.total / max(len(lines), 1))
    title = f"column {column}" if kind == "conll" else column
    seen = [
        f"{path.name}: {'CoNLL-U' if kind == 'conllu' else 'CoNLL'}, a word in each line: words → "
        f"{title}."
    ]
    task: Task = "words to tags"
    return pairs_found(path, corpus, rows, total=total, whole=sample.whole, seen=seen, task=task)


def _is_filled(sentences: Sequence[Sentence], column: str) -> bool:
    try:
        return all(sentence.column(column) for sentence in sentences)
    except DataError:
        return False


def _width_of_conll(lines: Sequence[str]) -> int:
    for line in lines:
        if line.strip() and not line.startswith(("#", "-DOCSTART-")):
            return len(line.split("\t") if "\t" in line else line.split())
    return 2


MIN_TEXT = 2000  # characters


def _running_text(path: Path) -> Found:
    """Text for a language model."""
    sample = sample_lines(path)
    _check_separated(path, sample)
    size = sum(map(len, sample.lines)) + len(sample.lines)
    if sample.whole and size < MIN_TEXT:
        raise DataError(
            f"{path.name} is running text of {size:,} characters, too little for a language model; "
            f"give at least {MIN_TEXT:,}, or a table with a source and a target in each row, "
            f"separated by a tab"
        )
    characters = size if sample.whole else round(size * sample.total / len(sample.lines))
    side = Side.of([line for line in sample.lines if line.strip()] or [""])
    counts = [count_of(number, sample.whole) for number in (characters, sample.total)]
    corpus = {"text": path.name}
    warnings = []
    if both := languages_beside(path):
        warnings.append(
            f"{', '.join(one.name for one in both[1:])} beside it may be the same in another "
            f"language; to learn to translate, give both, that of the sources first: transduce "
            f"train {both[0].name} {both[1].name}"
        )
    return Found(
        "language model",
        run_name(path),
        path.parent,
        {"train": corpus, **siblings(path, corpus)},
        rows=characters,
        sources=characters,
        whole=sample.whole,
        source=None,
        target=side,
        seen=[
            f"{path.name}: running text, no columns: a language model.",
            f"{counts[0].capitalize()} characters in {counts[1]} lines, {side.in_script}.",
        ],
        warnings=warnings,
    )


def _check_separated(path: Path, sample: Lines) -> None:
    """Raise DataError for a table of another separator, or with lines of several."""
    filled = [line for line in sample.lines[:2000] if line.strip()]
    tabs = sum("\t" in line for line in filled)
    if 2 * tabs >= len(filled):
        place = next(
            n for n, line in enumerate(sample.lines, 1) if line.strip() and "\t" not in line
        )
        raise DataError(
            f"{path.name}:{place}: the line has no tab, and {tabs:,} of {len(filled):,} have one; "
            f"separate source and target by a tab in every line"
        )
    if other := _other_separator(filled):
        raise DataError(
            f"{path.name}: there are {other} in every line; if they separate columns, write tabs "
            f"instead, and name it {path.stem}.tsv"
        )


SEPARATORS = {" ||| ": "|||", "|": "bars", ";": "semicolons", "  ": "two spaces", ",": "commas"}


def _other_separator(lines: Sequence[str], *also: str) -> str:
    """A sign other than a tab that stands as often in each line, with its number; empty: none.
    also: signs that running text has, too."""
    filled = [line for line in lines[:SHOWN] if line.strip()]
    for sign, name in SEPARATORS.items():
        counts = {line.count(sign) for line in filled}
        usual = sign != "," or sign in also
        if usual and len(filled) >= FEWEST and len(counts) == 1 and 0 not in counts:
            return f"{name} ({counts.pop()} each)"
    return ""
