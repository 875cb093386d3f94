"""The Declaration of Human Rights read by many espeak voices, in every language that espeak has.

A language is a folder: `sounds/VOICE/SEGMENT.flac`, and a table for each split.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from transduce.corpora.location import corpora_folder
from transduce.corpora.speech import READING_COLUMNS, READING_SPLITS, UDHR_SPOKEN
from transduce.corpora.udhr import Declaration, Paragraph, read_version
from transduce.data.audio.recording import load_audio_package
from transduce.errors import DataError
from transduce.synthesis.espeak import espeak
from transduce.synthesis.speech_corpus import Job, Read, make_readings
from transduce.synthesis.voices import Voice, voices

FORM = 1  # version: increase when readings change
SPELT = 0.5  # share of phrases; if espeak spells out more, it cannot read the language

OnProgress = Callable[[str, int, int], None]
"""Called with a language, the number of readings done, and their total."""


def speak(
    languages: Sequence[str], count: int, shelf: Path | None, workers: int, on_progress: OnProgress
) -> list[tuple[Path, bool]]:
    """Make the spoken corpus of each language; its folder, and whether it is new.

    After an interruption it continues with the next reading. Raises DataError for a language that
    is unknown, here or to espeak, before any work.
    """
    load_audio_package("soundfile")
    if not languages:
        raise DataError("there is no language to read: name one, such as --languages eng")
    shelf = (shelf or corpora_folder()) / UDHR_SPOKEN.name
    read_by = voices(count)
    plans = {code: _lines(code) for code in dict.fromkeys(languages)}
    made = []
    for code, (voice, lines) in plans.items():
        new = _speak_one(code, voice, lines, read_by, shelf / code, workers, on_progress)
        made.append((shelf / code, new))
    return made


def _lines(code: str) -> tuple[str, tuple[Paragraph, ...]]:
    """espeak's voice for a version of the text, and its phrases."""
    version = read_version(code)
    voice = espeak().voice_of(version.tag)
    if voice is None:
        raise DataError(
            f"espeak does not know the language of {code} ({version.title}): leave it out"
        )
    lines = tuple(cut(version))
    sample = lines[:: max(1, len(lines) // 10)]
    spelt = sum(espeak().read(line.text, voice).foreign for line in sample)
    if spelt > SPELT * len(sample):
        raise DataError(
            f"espeak cannot read {code} ({version.title}) in this script, only spell it: leave it "
            f"out"
        )
    return voice, lines


def cut(version: Declaration) -> Iterator[Paragraph]:
    """The phrases of a version; those of a07.1 are a07.1.1, a07.1.2, ..."""
    for whole in version.paragraphs:
        for number, text in enumerate(phrases(whole.text), start=1):
            yield Paragraph(f"{whole.segment}.{number}", whole.split, text)


def _speak_one(
    code: str,
    espeak_voice: str,
    lines: tuple[Paragraph, ...],
    read_by: Sequence[Voice],
    place: Path,
    workers: int,
    on_progress: OnProgress,
) -> bool:
    plan: dict[str, object] = {
        "form": FORM,
        "espeak": espeak().version,
        "voice": espeak_voice,
        "voices": [asdict(voice) for voice in read_by],
        "lines": [asdict(line) for line in lines],
    }
    jobs = [Job(code, espeak_voice, voice, _lines_of(voice, lines)) for voice in read_by]
    name = f"{UDHR_SPOKEN.name}/{code}"
    return make_readings(place, name, plan, jobs, _tables, workers, partial(on_progress, code))


def _lines_of(voice: Voice, lines: tuple[Paragraph, ...]) -> tuple[Paragraph, ...]:
    """The lines of a voice: a held-out voice reads only held-out articles."""
    return tuple(line for line in lines if line.split == "test" or not voice.held_out)


def _tables(everything: list[Read]) -> dict[str, list[Sequence[str]]]:
    tables: dict[str, list[Sequence[str]]] = {split: [READING_COLUMNS] for split in READING_SPLITS}
    for job, line, audio, phones, seconds in everything:
        split = line.split
        if split == "test":
            split = "test-voices" if job.voice.held_out else "test-articles"
        row = [audio, line.text, phones, job.language, job.voice.variant, line.segment, seconds]
        if phones:
            tables[split].append(row)
    return tables


# ----------------------------------------------------------------------- phrases of its paragraphs


LONGEST = 100  # letters
WIDE = 4  # characters that a Chinese character, or a kana, counts for

# Punctuation after which a phrase may end: of sentences, then within sentences.
STRONG = re.compile(r"(?<=[.!?;:。！？；：।॥؟؛۔።፤։])\s*")
WEAK = re.compile(r"(?<=[,，、،፣·‧])\s*")
HYPHENS = str.maketrans({"\u2010": "-", "\u2011": "-", "\u00ad": "", "\u200b": ""})


def phrases(paragraph: str, longest: int = LONGEST) -> list[str]:
    """A paragraph split after its sentences and, if these are long, after commas.

    Neighbours are merged again as long as they stay within `longest`; a phrase without a comma may
    be longer.
    """
    text = " ".join(paragraph.translate(HYPHENS).split())
    found: list[str] = []
    for sentence in _pieces(STRONG, text):
        parts = [sentence] if length(sentence) <= longest else _pieces(WEAK, sentence)
        start = len(found)
        for part in parts:
            apart = "" if length(part) > len(part) else " "  # such scripts have no spaces
            if len(found) > start and length(found[-1]) + length(part) < longest:
                found[-1] += apart + part
            else:
                found.append(part)
    return found


def length(text: str) -> int:
    """The length in characters of an alphabet."""
    return sum(WIDE if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


def _pieces(cut: re.Pattern[str], text: str) -> list[str]:
    """With at least two letters each: "1." and "e.g." are not phrases of their own."""
    found: list[str] = []
    for piece in cut.split(text):
        if found and sum(map(str.isalpha, found[-1])) < 2:
            found[-1] += " " + piece
        elif any(map(str.isalnum, piece)):
            found.append(piece)
        elif found:
            found[-1] += piece
    return found
