"""Recordings: a table that lists them, and what the files themselves say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import numpy as np

from transduce.automatic.columns import SHOWN, Column, Roles, format_by_name, left_out, run_name
from transduce.automatic.found import LONG, Found, Lengths, Side, Sound, Task, Unseen, count_of
from transduce.automatic.pairs import FEWEST
from transduce.automatic.sample import Table
from transduce.automatic.siblings import parts_of
from transduce.data.audio.ctc_states import states_needed, too_short_for_ctc
from transduce.data.audio.read import audio_info
from transduce.data.audio.recording import AudioInfo
from transduce.errors import DataError
from transduce.recipe import Audio
from transduce.storage import expanded

LOOKED_FOR = 2000  # files whose existence is checked
SPEAKERS = frozenset(("speaker", "client", "voice"))  # names of columns
OPENED = 500  # files whose header is read
FASTEST = 1.1  # of the speeds that training draws


def recordings(
    path: Path,
    table: Table,
    columns: Sequence[Column],
    roles: Roles,
    hints: Mapping[str, Any],
) -> Found:
    """What a table of recordings is."""
    corpus: dict[str, Any] = {"file": path.name}
    if format_by_name(path) != table.format:
        corpus["format"] = table.format
    corpus |= {"audio": roles.source.key, "target": roles.target.key}
    for key in ("start", "end", "tags"):
        column = getattr(roles, key)
        if column is not None:
            corpus[key] = column.key
    corpus |= table.header_for(corpus.values())
    parts = parts_of(path, table, corpus, roles.parts)
    seen = [
        f"{path.name}: {table.format.upper()} of recordings: {roles.source.title} → "
        f"{roles.target.title}.",
        *parts.seen,
        *left_out(columns, roles),
    ]
    asked = hints.get("task")
    label = roles.target.kind == "label" if asked is None else asked == "classify"
    rows = [
        (row[roles.source.place].strip(), row[roles.target.place].strip())
        for row in parts.table.rows
    ]
    spans = None
    if roles.start is not None and roles.end is not None:
        spans = [(row[roles.start.place], row[roles.end.place]) for row in parts.table.rows]
    return sounds_found(
        path,
        parts.corpus,
        rows,
        total=parts.table.total,
        whole=table.whole,
        seen=seen,
        warnings=[*table.notes, *_known_voices(columns, roles, parts.others)],
        task="audio to label" if label else "audio to text",
        others=parts.others,
        spans=spans,
    )


def _known_voices(columns: Sequence[Column], roles: Roles, others: Mapping[str, Any]) -> list[str]:
    """A warning that the score is of voices that training has heard, where speakers are named and
    the parts are drawn by recording."""
    named = [one for one in columns if one.named(SPEAKERS) and one is not roles.target]
    if not named or "valid" in others:
        return []
    return [
        f"the parts are drawn by recording, so training hears each {named[0].title} of the "
        f"held-out ones; to measure new voices, put recordings of other speakers into valid and "
        f"test tables beside it"
    ]


def sounds_found(
    path: Path,
    corpus: dict[str, Any],
    rows: Sequence[tuple[str, str]],
    *,
    total: int,
    whole: bool,
    seen: list[str],
    warnings: list[str],
    task: Task,
    others: dict[str, dict[str, Any]],
    spans: Sequence[tuple[str, str]] | None = None,
) -> Found:
    """Statistics of recordings, of which `rows` have the path and the target."""
    folder = path if path.is_dir() else path.parent
    both = [row for row in rows if row[0] and row[1]]
    if 2 * len(both) <= len(rows):
        raise DataError(
            f"{path.name}: the text of {len(rows) - len(both):,} of {len(rows):,} recordings is "
            f"empty; fill it in, or name another column: data.train.target=NAME"
        )
    step = max(1, len(both) // LOOKED_FOR)
    names = [name for name, _ in both[::step]]
    missing = [name for name in names if not (folder / expanded(name)).is_file()]
    if missing:
        sentence = (
            f"{path.name}: {len(missing):,} of {len(names):,} audio files are missing, such as "
            f"{missing[0] if '://' in missing[0] else folder / missing[0]}"
        )
        if 2 * len(missing) > len(names):
            if "://" in missing[0]:
                raise DataError(f"{sentence}; download them, and write their paths into the table")
            raise DataError(
                f"{sentence}; paths start at the folder of the table: {_mended(folder, missing[0])}"
            )
        warnings.append(f"{sentence}; they are skipped")
    there = [name for name in dict.fromkeys(names) if name not in set(missing)]
    files = len({name for name, _ in both})
    if whole and files < FEWEST:
        raise DataError(
            f"{path.name} has {files:,} recordings, too few to learn from and to measure; give at "
            f"least {FEWEST}, and rather hundreds"
        )
    headers = _headers(folder, there[:: max(1, len(there) // OPENED)])
    rate = Counter(one.rate for one in headers.values()).most_common(1)[0][0]
    rates = Counter(one.rate for one in headers.values())
    mixed = ", ".join(
        f"{each / 1000:g} kHz {100 * count / len(headers):.0f} %"
        for each, count in rates.most_common(4)
    )
    if len(rates) > 1:
        seen = [*seen, f"Sampling rates: {mixed}; all are resampled to {rate / 1000:g} kHz."]
    texts = dict(both)
    timed = [(one.seconds, texts[name]) for name, one in headers.items()]
    if spans is not None:
        times = zip(map(_times, spans), rows, strict=True)
        timed = [(end - start, text) for (start, end), (_, text) in times if end > start] or timed
    seconds = [length for length, _ in timed]
    mean = sum(seconds) / len(seconds)
    lengths = Lengths.of(round(100 * one) for one in seconds)
    in_long = sum(one for one in seconds if one > LONG) / sum(seconds)
    minutes = mean * total / 60 * (1 - len(missing) / len(names))
    target = Side.of([text for _, text in both])
    labels = len({text for _, text in both}) if task == "audio to label" else 0
    if labels == 1:
        raise DataError(
            f"{path.name}: every recording has the label {both[0][1]}, so there is nothing to "
            f"learn; give recordings of at least two labels"
        )
    what = f"{labels} labels" if labels else f"text {target.in_script}"
    sizes = (
        f"{count_of(total, whole)} recordings, {_duration(minutes)}, of "
        f"{lengths.median / 100:.1f} s in the median, {rate / 1000:g} kHz; {what}."
    )
    return Found(
        task,
        run_name(path),
        folder,
        {"train": corpus, **others},
        rows=total,
        sources=round(files * total / max(len(rows), 1)),
        whole=whole,
        source=None,
        target=target,
        labels=labels,
        unseen=Unseen() if labels else Unseen.of(both, target.is_symbols, copies=False),
        sound=Sound(
            lengths, minutes, rate, 0.0 if labels else _too_short(timed, rate, target), in_long
        ),
        seen=[*seen, f"{sizes[0].upper()}{sizes[1:]}"],
        warnings=warnings,
        examples=sorted({name for name, _ in both})[:SHOWN] if whole else [],
    )


def _mended(folder: Path, name: str) -> str:
    """How to correct a path: where a folder beside the table has the file, by its name, or one
    beside the folder of the table."""
    place = next((one.parent.name for one in folder.glob(f"*/{escape(Path(name).name)}")), None)
    if place is None and not Path(name).is_absolute():
        for one in folder.parent.glob(f"*/{escape(name)}"):
            place = f"../{one.relative_to(folder.parent).parts[0]}"
    return "correct them" if place is None else f"it is in {place}, so write {place}/ before each"


def _too_short(timed: Sequence[tuple[float, str]], rate: int, target: Side) -> float:
    """The share of recordings, each with its seconds and its text, that are too short for CTC."""
    audio = Audio(sample_rate=min(max(rate, 2_000), 96_000), speed_perturbation=[FASTEST])
    samples_N = np.array([round(seconds * audio.sample_rate) for seconds, _ in timed], np.int64)
    tokens = [text.split() if target.is_symbols else list(text) for _, text in timed]
    numbers: dict[str, int] = {}
    ids = [numbers.setdefault(token, len(numbers)) for text in tokens for token in text]
    offsets = np.cumsum([0, *map(len, tokens)], dtype=np.int64)
    needed_N = states_needed(np.array(ids, np.int32), offsets)
    return too_short_for_ctc(samples_N, needed_N, audio).share


def _headers(folder: Path, names: Sequence[str]) -> dict[str, AudioInfo]:
    """What the files say that can be read; training skips the others. Raises where none can."""
    found, trouble = dict[str, AudioInfo](), None
    for name in names:
        try:
            found[name] = audio_info(folder / expanded(name))
        except DataError as error:
            trouble = trouble or error
    if not found and trouble is not None:
        raise trouble
    return found


def _times(span: tuple[str, str]) -> tuple[float, float]:
    """Start and end in seconds; the same where a cell has no number: training names the line."""
    try:
        return float(span[0]), float(span[1])
    except ValueError:
        return 0.0, 0.0


def _duration(minutes: float) -> str:
    if minutes < 90:
        return f"{minutes:.1f} minutes" if minutes < 10 else f"{minutes:.0f} minutes"
    return f"{minutes / 60:.1f} hours"
