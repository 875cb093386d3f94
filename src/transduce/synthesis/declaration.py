"""The Declaration of Human Rights read aloud by many voices, in every language that espeak knows.

A language is a folder: `sounds/VOICE/SEGMENT.flac`, and a table for each split. A reading, of one
language by one voice, is made by a process of its own, so that its bytes are the same each time.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import cast

from transduce.corpora.place import FACTS, corpora_folder, facts_of, read_facts
from transduce.corpora.udhr_spoken import COLUMNS, NAME, SPLITS
from transduce.corpora.versions import Declaration, Paragraph, read_version
from transduce.data.audio import resampled
from transduce.data.recording import load_sound_package
from transduce.errors import DataError
from transduce.storage import held, write_json, write_text
from transduce.synthesis.espeak import espeak
from transduce.synthesis.phrases import phrases
from transduce.synthesis.surroundings import recorded
from transduce.synthesis.voices import Voice, generator_of, voices

RATE = 16_000
FORM = 1  # raise when readings change
SPELT = 0.5  # of the phrases: a language of which more is read as another cannot be read

Watch = Callable[[str, int, int], None]
"""Is told of which language how many readings are there, and how many there will be."""


@dataclass(frozen=True)
class Job:
    """One language by one voice."""

    language: str
    espeak_voice: str
    voice: Voice
    lines: tuple[Paragraph, ...]
    folder: Path

    @property
    def done(self) -> Path:
        """Written last: where it is, all sounds are."""
        return self.folder / "readings" / f"{self.voice.variant}.json"


def speak(
    languages: Sequence[str], count: int, shelf: Path | None, workers: int, watch: Watch
) -> list[tuple[Path, bool]]:
    """Make the spoken corpus of each language; its folder, and whether it is new.

    Stopped, it goes on with the reading that was not done. Raises DataError for a language that is
    not known, here or to espeak, before any work.
    """
    load_sound_package("soundfile")
    if not languages:
        raise DataError("there is no language to read: name one, such as --languages eng")
    shelf = (shelf or corpora_folder()) / NAME
    read_by = voices(count)
    plans = {code: _lines(code) for code in dict.fromkeys(languages)}
    return [
        _speak_one(code, voice, lines, read_by, shelf, workers, watch)
        for code, (voice, lines) in plans.items()
    ]


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
            f"espeak cannot read {code} ({version.title}) in this script, it spells it: leave it "
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
    shelf: Path,
    workers: int,
    watch: Watch,
) -> tuple[Path, bool]:
    place, work = shelf / code, shelf / f".{code}.part"
    plan = {
        "form": FORM,
        "espeak": espeak().version,
        "voice": espeak_voice,
        "voices": [asdict(voice) for voice in read_by],
        "lines": [asdict(line) for line in lines],
    }
    facts = read_facts(place)
    if facts and facts["plan"] == plan and all((place / name).is_file() for name in facts["files"]):
        return place, False
    if place.exists() and facts is None and any(place.iterdir()):
        raise DataError(f"{place} holds other files; move them, or choose another place with --to")
    try:
        work.mkdir(parents=True, exist_ok=True)
        with held(work) as ours:
            if not ours:
                raise DataError(f"another process is making {place}; let it end")
            _begin(work, plan)
            jobs = [
                Job(code, espeak_voice, voice, _lines_of(voice, lines), work) for voice in read_by
            ]
            _read_all(jobs, workers, lambda done: watch(code, done, len(jobs)))
            _write_tables(jobs, work)
            write_json(work / FACTS, facts_of(work, name=f"{NAME}/{code}", plan=plan))
            shutil.rmtree(place, ignore_errors=True)
            work.replace(place)
    except OSError as error:
        raise DataError(
            f"{place} could not be written ({error.strerror or error}); free some space, or choose "
            f"another place with --to"
        ) from None
    return place, True


def _lines_of(voice: Voice, lines: tuple[Paragraph, ...]) -> tuple[Paragraph, ...]:
    """What a voice reads: one that is held out, the articles that are so too."""
    return tuple(line for line in lines if line.split == "test" or not voice.held_out)


def _begin(work: Path, plan: object) -> None:
    """Keep what an earlier call has made of the same plan, and nothing else."""
    told = work / "plan.json"
    wanted = json.loads(json.dumps(plan))
    try:
        same = json.loads(told.read_text("utf-8")) == wanted
    except (OSError, ValueError):
        same = False
    if not same:
        for path in work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_json(told, wanted)
    (work / "readings").mkdir(exist_ok=True)


def _read_all(jobs: Sequence[Job], workers: int, watch: Callable[[int], None]) -> None:
    """Each reading in a process that ends with it, so many at a time."""
    waiting = [job for job in jobs if not job.done.is_file()]
    done = len(jobs) - len(waiting)
    watch(done)
    context = _fresh_processes()
    running: dict[int, tuple[BaseProcess, Job]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                job = waiting.pop(0)
                fresh: BaseProcess = context.Process(target=read_aloud, args=(job,), daemon=True)
                fresh.start()
                running[fresh.sentinel] = (fresh, job)
            for sentinel in wait(list(running)):
                process, job = running.pop(cast(int, sentinel))
                process.join()
                if not job.done.is_file():
                    raise DataError(
                        f"the reading of {job.language} by {job.voice.variant} could not be made "
                        f"(its process ended with {process.exitcode}); is there space in "
                        f"{job.folder}?"
                    )
                done += 1
                watch(done)
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()


def _fresh_processes() -> ForkServerContext | SpawnContext:
    """Processes in which espeak has not spoken yet, and which need not import all this anew."""
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def read_aloud(job: Job) -> None:
    """Write the sounds of one reading; in a process of its own."""
    soundfile = load_sound_package("soundfile")
    folder = job.folder / "sounds" / job.voice.variant
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for line in job.lines:
        generator = generator_of(job.language, job.voice.variant, line.segment)
        reading = espeak().read(
            line.text,
            job.espeak_voice,
            job.voice.variant,
            job.voice.speed * generator.uniform(0.9, 1.1),
            job.voice.pitch * generator.uniform(0.85, 1.15),
        )
        clean = resampled(reading.samples, reading.rate, RATE)
        samples, _ = recorded(clean, RATE, generator)
        path = folder / f"{line.segment}.flac"
        soundfile.write(path, samples, RATE, subtype="PCM_16")
        rows.append([line.segment, reading.symbols, f"{len(samples) / RATE:.3f}"])
    write_json(job.done, rows)


def _write_tables(jobs: Sequence[Job], work: Path) -> None:
    tables = {split: ["\t".join(COLUMNS)] for split in SPLITS}
    for job in jobs:
        rows = json.loads(job.done.read_text("utf-8"))
        for line, (segment, phones, seconds) in zip(job.lines, rows, strict=True):
            split = line.split
            if split == "test":
                split = "test-voices" if job.voice.held_out else "test-articles"
            name = job.voice.variant
            audio = f"sounds/{name}/{segment}.flac"
            row = [audio, line.text, phones, job.language, name, segment, seconds]
            if phones:
                tables[split].append("\t".join(row))
    for split, lines in tables.items():
        write_text(work / f"{split}.tsv", "\n".join(lines) + "\n")
    shutil.rmtree(work / "readings")
