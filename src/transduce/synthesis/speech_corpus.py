"""Speech corpora: many voices read lines aloud, each in a process of its own.

In a process of its own a reading is reproducible, byte for byte. A corpus is complete or does not
exist; after an interruption, work continues with the next reading.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple, cast

from transduce.corpora.location import METADATA, check_place, metadata_of, read_metadata
from transduce.corpora.udhr import Paragraph
from transduce.data.audio.read import resampled
from transduce.data.audio.recording import load_audio_package
from transduce.errors import DataError
from transduce.storage import replace_folder, write_json, write_text
from transduce.storage.locks import held
from transduce.synthesis.acoustics import simulate_recording
from transduce.synthesis.espeak import espeak
from transduce.synthesis.voices import Voice, generator_of

RATE = 16_000

OnProgress = Callable[[int, int], None]
"""Called with the number of readings done, and their total."""


@dataclass(frozen=True)
class Job:
    """The lines that one voice reads."""

    language: str
    espeak_voice: str
    voice: Voice
    lines: tuple[Paragraph, ...]
    folder: Path = Path()

    @property
    def done(self) -> Path:
        """The file that is written last: if it exists, all audio does."""
        return self.folder / "readings" / f"{self.voice.variant}.json"


class Read(NamedTuple):
    """A line as it was read."""

    job: Job
    line: Paragraph
    audio: str
    """Its audio file, relative to the corpus folder."""
    phones: str
    seconds: str


Tables = Callable[[list[Read]], dict[str, list[Sequence[str]]]]
"""A function from all readings to the rows of each split, the header first."""


def make_readings(
    place: Path,
    name: str,
    plan: dict[str, object],
    jobs: Sequence[Job],
    tables: Tables,
    workers: int,
    on_progress: OnProgress,
) -> bool:
    """Make all readings of a corpus; False if one of the same plan exists already."""
    load_audio_package("soundfile")
    work = place.parent / f".{place.name}.part"
    metadata = read_metadata(place)
    if (
        metadata
        and metadata["plan"] == plan
        and all((place / file).is_file() for file in metadata["files"])
    ):
        return False
    check_place(place)
    try:
        work.mkdir(parents=True, exist_ok=True)
        with held(work) as ours:
            if not ours:
                raise DataError(f"another process is making {place}; wait for it")
            _begin(work, plan)
            here = [replace(job, folder=work) for job in jobs]
            _read_all(here, workers, lambda done: on_progress(done, len(here)))
            for split, rows in tables(_all_read(here)).items():
                text = "".join("\t".join(row) + "\n" for row in rows)
                write_text(work / f"{split}.tsv", text)
            shutil.rmtree(work / "readings")
            write_json(work / METADATA, metadata_of(work, name=name, plan=plan))
            replace_folder(work, place)
    except OSError as error:
        raise DataError(
            f"{place} could not be written ({error.strerror or error}); free some space, or choose "
            f"another place with --output"
        ) from None
    return True


def _begin(work: Path, plan: object) -> None:
    """Keep what an earlier call has made for the same plan, and nothing else."""
    plan_file = work / "plan.json"
    wanted = json.loads(json.dumps(plan))
    try:
        same = json.loads(plan_file.read_text("utf-8")) == wanted
    except (OSError, ValueError):
        same = False
    if not same:
        for path in work.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_json(plan_file, wanted)
    (work / "readings").mkdir(exist_ok=True)


def _all_read(jobs: Sequence[Job]) -> list[Read]:
    found = []
    for job in jobs:
        rows = json.loads(job.done.read_text("utf-8"))
        for line, (segment, phones, seconds) in zip(job.lines, rows, strict=True):
            audio = f"sounds/{job.voice.variant}/{segment}.flac"
            found.append(Read(job, line, audio, phones, seconds))
    return found


def _read_all(jobs: Sequence[Job], workers: int, on_progress: Callable[[int], None]) -> None:
    """Each reading in its own process, `workers` at a time."""
    waiting = [job for job in jobs if not job.done.is_file()]
    done = len(jobs) - len(waiting)
    on_progress(done)
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
                on_progress(done)
    finally:
        for process, _ in running.values():
            process.terminate()
            process.join()


def _fresh_processes() -> ForkServerContext | SpawnContext:
    """A context for new processes in which espeak was not used yet, without importing everything
    again.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():  # Windows
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def read_aloud(job: Job) -> None:
    """Write the audio of one reading; in a process of its own."""
    soundfile = load_audio_package("soundfile")
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
        samples, _ = simulate_recording(clean, RATE, generator)
        path = folder / f"{line.segment}.flac"
        soundfile.write(path, samples, RATE, subtype="PCM_16")
        rows.append([line.segment, reading.symbols, f"{len(samples) / RATE:.3f}"])
    write_json(job.done, rows)
