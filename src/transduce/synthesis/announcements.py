"""A speech corpus of announcements: different ones for every voice, some voices only in the test
set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from transduce.corpora.location import corpora_folder
from transduce.corpora.speech import ANNOUNCEMENT_COLUMNS, ANNOUNCEMENTS, announcements
from transduce.corpora.udhr import Paragraph
from transduce.errors import DataError
from transduce.synthesis.espeak import espeak
from transduce.synthesis.speech_corpus import Job, OnProgress, Read, make_readings
from transduce.synthesis.voices import KNOWN, voices

FORM = 1  # version: increase when readings change
LANGUAGE = "en"


def make_announcements(workers: int, on_progress: OnProgress) -> tuple[Path, bool]:
    """Make the corpus if it does not exist; its folder, and whether it is new."""
    espeak_voice = espeak().voice_of(LANGUAGE)
    if espeak_voice is None:
        raise DataError("espeak has no voice for English here: install espeakng-loader again")
    read_by = voices(len(KNOWN))
    lines: dict[str, list[Paragraph]] = {voice.variant: [] for voice in read_by}
    for split, texts in announcements().items():
        mine = [voice.variant for voice in read_by if voice.held_out == (split == "test")]
        for number, text in enumerate(texts):
            line = Paragraph(f"{split}-{number:03}", split, text)
            lines[mine[number % len(mine)]].append(line)
    jobs = [
        Job(LANGUAGE, espeak_voice, one, tuple(lines[one.variant]))
        for one in read_by
        if lines[one.variant]
    ]
    plan: dict[str, object] = {
        "form": FORM,
        "espeak": espeak().version,
        "voices": [asdict(voice) for voice in read_by],
        "lines": {name: [asdict(line) for line in read] for name, read in lines.items()},
    }
    place = corpora_folder() / ANNOUNCEMENTS.name
    return place, make_readings(
        place, ANNOUNCEMENTS.name, plan, jobs, _tables, workers, on_progress
    )


def _tables(everything: list[Read]) -> dict[str, list[Sequence[str]]]:
    tables: dict[str, list[Sequence[str]]] = {
        split: [ANNOUNCEMENT_COLUMNS] for split in announcements()
    }
    for read in everything:
        row = [read.audio, read.line.text, read.job.voice.variant, read.seconds]
        tables[read.line.split].append(row)
    return tables
