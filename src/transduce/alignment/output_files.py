"""Alignment files: segments as TSV and JSON, TextGrids, and a manifest for training."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from transduce.alignment.align import Aligned, Utterance
from transduce.data.audio.intervals import Interval, TextGrid, Tier, format_textgrid, number_grid
from transduce.errors import DataError
from transduce.storage import write_json, write_text

SEGMENTS = ("line", "start", "end", "confidence", "read", "text")
MARGIN = 0.1  # seconds of the pauses around each segment for training
MANIFEST = ("audio", "start", "end", "text", "phones", "confidence", "line")


def files_of(folder: Path, audio: Path) -> list[Path]:
    """The files that `write_alignment` writes for a recording."""
    names = ("segments.tsv", "segments.json", "manifest.tsv")
    grids = (f"{audio.stem}.TextGrid", f"{audio.stem}.seg.TextGrid")
    return [folder / name for name in (*names, *grids)]


def write_alignment(aligned: Aligned, folder: Path, min_confidence: float) -> None:
    """Write all files of an alignment; `min_confidence`: of segments in the manifest."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder {folder} cannot be made ({error.strerror}); choose another with --output"
        ) from None
    name = aligned.audio.stem
    uncertain = aligned.uncertain
    rows = [_segment(one, one.number in uncertain) for one in aligned.utterances]
    write_text(folder / "segments.tsv", table([SEGMENTS, *rows]))
    write_json(folder / "segments.json", _as_json(aligned))
    write_text(folder / f"{name}.TextGrid", format_textgrid(grid_of(aligned)))
    numbers = number_grid([(u.start, u.end, u.number) for u in aligned.read], aligned.seconds)
    write_text(folder / f"{name}.seg.TextGrid", format_textgrid(numbers))
    rows = manifest_rows(aligned, folder, min_confidence)
    write_text(folder / "manifest.tsv", table([MANIFEST, *rows]))


def grid_of(aligned: Aligned) -> TextGrid:
    """A TextGrid with tiers of utterances, words and, for phone models, phones."""
    read = aligned.read
    spoken = [Interval(one.start, one.end, one.text) for one in read]
    tiers = {
        "utterances": spoken,
        "words": [word for one in read for word in one.words],
        "phones": [phone for one in read for phone in one.phones],
    }
    filled = tuple(Tier(name, tuple(found)) for name, found in tiers.items() if found)
    return TextGrid(0.0, aligned.seconds, filled or (Tier("utterances", ()),))


def manifest_rows(aligned: Aligned, folder: Path, min_confidence: float) -> list[list[str]]:
    """Rows of a manifest in `folder` that a recipe can train on, with short pauses around."""
    # Audio paths are relative to the manifest, so that both can be moved together.
    audio = os.path.relpath(aligned.audio.absolute(), folder.absolute())
    read = sorted(aligned.read, key=lambda one: one.start)
    ends = [0.0, *(one.end for one in read)]
    starts = [*(one.start for one in read), aligned.seconds]
    rows = []
    for place, one in enumerate(read):
        if one.confidence < min_confidence:
            continue
        start = max(one.start - MARGIN, (ends[place] + one.start) / 2)
        end = min(one.end + MARGIN, (one.end + starts[place + 1]) / 2)
        phones = " ".join(phone.text for phone in one.phones)
        sure = f"{one.confidence:.3f}"
        rows.append([audio, f"{start:.3f}", f"{end:.3f}", one.text, phones, sure, str(one.number)])
    return rows


def table(rows: Iterable[Sequence[str]]) -> str:
    return "".join("\t".join(" ".join(cell.split()) for cell in row) + "\n" for row in rows)


def _segment(one: Utterance, uncertain: bool) -> list[str]:
    times = [f"{one.start:.3f}", f"{one.end:.3f}"] if one.read else ["", ""]
    read = "yes" if one.read else "uncertain" if uncertain else "no"
    return [str(one.number), *times, f"{one.confidence:.3f}", read, one.text]


def _as_json(aligned: Aligned) -> dict[str, Any]:
    uncertain = aligned.uncertain
    utterances = [
        {
            "line": one.number,
            "text": one.text,
            "read": one.read,
            "perhaps": _span(uncertain.get(one.number)),
            "start": None if math.isnan(one.start) else round(one.start, 3),
            "end": None if math.isnan(one.end) else round(one.end, 3),
            "confidence": round(one.confidence, 4),
            "words": [_interval(word) for word in one.words],
            "phones": [_interval(phone) for phone in one.phones],
        }
        for one in aligned.utterances
    ]
    return {
        "audio": str(aligned.audio),
        "seconds": round(aligned.seconds, 3),
        "median_confidence": round(aligned.median_confidence, 4),
        "warning": aligned.warning or None,
        "utterances": utterances,
        "without_text": [_span(span) for span in aligned.untold],
    }


def _span(span: tuple[float, float] | None) -> dict[str, float] | None:
    return None if span is None else {"start": span[0], "end": span[1]}


def _interval(one: Interval) -> dict[str, Any]:
    return {"text": one.text, "start": round(one.start, 3), "end": round(one.end, 3)}
