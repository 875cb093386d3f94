"""The command batch: apply a model to files of any size, in shards, by many processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from transduce.cli.commands.options import (
    NONE_GIVEN,
    AllSettings,
    Device,
    ModelArgument,
    Precision,
)
from transduce.cores import count_cores
from transduce.terminal import say

if TYPE_CHECKING:
    from transduce.batch_inference.decoder import Decoder
    from transduce.batch_inference.job import Job

ENGINES = ("local", "slurm", "ray")
SLURM_TASKS = 8
PAUSE = 5.0  # seconds between two messages while lines are counted


def batch(
    model: ModelArgument,
    output: Annotated[
        str,
        typer.Option(
            help="Folder of the job: one output file per shard, manifest.json. Also s3://… or "
            "gs://…."
        ),
    ],
    file: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            help="Files, or a pattern in quotes: text (one source per line), .tsv, .csv, "
            ".jsonl, each also .gz or .xz, or .parquet; repeatable. Without it, the job in "
            "--output goes on. Also s3://…, gs://… or https://….",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="local: processes of this machine; slurm: write a script for sbatch; ray: a "
            "Ray cluster."
        ),
    ] = "local",
    workers: Annotated[
        int,
        typer.Option(
            min=0, help="Worker processes, Ray actors or Slurm tasks. Default: one per core or GPU."
        ),
    ] = 0,
    shard: Annotated[
        str | None,
        typer.Option(help="i/n: only the i-th of n equal parts of the shards, i from 0."),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            help="Column of sources: a name, or for TSV and CSV without a header a number from 0. "
            "Default: source; for TSV and CSV 0."
        ),
    ] = None,
    output_column: Annotated[str, typer.Option(help="Name of the column of outputs.")] = "output",
    kind: Annotated[
        str | None,
        typer.Option("--format", help="text, tsv, csv, jsonl or parquet. Default: as the input."),
    ] = None,
    shard_lines: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum lines per shard. Default: by input size and --workers."),
    ] = None,
    settings: AllSettings = NONE_GIVEN,
    scores: Annotated[
        bool, typer.Option("--scores", help="Also a column of scores; in text, before each output.")
    ] = False,
    device: Device = "auto",
    precision: Precision = "auto",
) -> None:
    """Run a model over many or large files, in shards. A stopped job goes on where it was."""
    # Each worker has one thread, however many there are: the output does not depend on it.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transduce.batch_inference.decoder import open_decoder
    from transduce.batch_inference.inputs import parse_task, shards_of_task
    from transduce.batch_inference.job import FEWEST_LINES, Settings, open_job
    from transduce.batch_inference.rows import GROUP_LINES
    from transduce.decoding.constraints.glossary import Glossary
    from transduce.errors import DataError
    from transduce.hardware import keep_loaded, pick_device
    from transduce.storage.positions import place_at

    if engine not in ENGINES:
        raise DataError(
            f"there is no engine {engine}; there are {', '.join(ENGINES)} (for a model that was "
            f"exported for CTranslate2 or ONNX, give its folder as MODEL)"
        )
    task, tasks = parse_task(shard) if shard is not None else (0, 1)
    decode = dict(settings)
    tags = decode.pop("tags", [])
    if "glossary" in decode:  # its content, which a job that goes on still has
        entries = Glossary.of(decode["glossary"]).entries
        decode["glossary"] = {term: list(translations) for term, translations in entries.items()}
    ensemble = decode.pop("ensemble", None)
    if ensemble is not None:
        ensemble = [str(one.absolute()) for one in ensemble]
    others = {
        name: str(decode.pop(name).absolute())
        for name in ("rerank", "language_model")
        if name in decode
    }
    asked = Settings(
        decode=decode,
        tags=tags,
        ensemble=ensemble,
        **others,
        precision=precision,
        column=column,
        output_column=output_column,
        format=kind,
        scores=scores,
        shard_lines=shard_lines,
    )
    place = str(pick_device(device))
    loaded: list[Decoder] = []

    def prepare() -> Decoder:
        """The model, with its settings checked; loaded once."""
        if not loaded:
            found = open_decoder(model, asked, place)
            found.model.tags_of(asked.tags)
            loaded.append(found)
        return loaded[0]

    if engine == "slurm":
        workers = workers or SLURM_TASKS
    elif engine == "local":
        workers = workers or _processes(place)
    # A GPU decodes a whole group at once; shards of less would not fill it.
    fewest = FEWEST_LINES if place == "cpu" else GROUP_LINES
    planned = workers or count_cores(), fewest
    folder = place_at(output)
    job = open_job(model, file or [], folder, asked, prepare, _now_and_then(), *planned)
    asked = job.settings
    if engine == "slurm":
        _write_slurm(job, workers, device)
        return
    shards = [job.shards[number] for number in shards_of_task(len(job.shards), task, tasks)]
    todo = job.unfinished(shards)
    if len(todo) < len(shards):
        say(f"{len(shards) - len(todo):,} of {len(shards):,} shards are finished already")
    try:
        if todo and engine == "ray":
            from transduce.batch_inference.clusters import run_on_ray

            run_on_ray(job, shards, workers, device)
        elif todo:
            from transduce.batch_inference.local import run_locally

            shared = prepare() if place == "cpu" and hasattr(os, "fork") else None
            if shared is not None and shared.model.engine is not None:
                # CTranslate2 and ONNX Runtime have threads, which a forked process would wait for.
                shared = None
                loaded.clear()
            keep_loaded()
            lines = sum(one.lines for one in todo)
            count = min(workers, len(todo))
            say(f"{lines:,} lines in {len(todo):,} shards; worker processes: {count}")
            run_locally(job, shards, workers, place, shared)
        else:  # the command before may have been killed after the last shard
            job.clean()
    except KeyboardInterrupt:
        say("stopped; the same command goes on from the finished shards")
        raise
    _summary(job)


def _processes(place: str) -> int:
    import torch

    return count_cores() if place == "cpu" else max(1, torch.cuda.device_count())


def _write_slurm(job: Job, tasks: int, device: str) -> None:
    from transduce.batch_inference.clusters import write_script

    path = write_script(job, tasks, device)
    say(f"{len(job.shards):,} shards, {job.lines:,} lines; look through the script, then submit:")
    print(f"sbatch {path}")


def _summary(job: Job) -> None:
    from transduce.batch_inference.worker import count_errors

    left = len(job.unfinished(job.shards))
    empty, kept = count_errors(job)
    done = len(job.shards) - left
    print(f"{job.folder}: {done:,} of {len(job.shards):,} shards, {job.lines:,} lines in all")
    if empty or kept:
        lines = "line has" if empty == 1 else "lines have"
        print(f"{empty:,} {lines} an empty output, {kept:,} a warning: {job.folder / 'errors'}")


def _now_and_then() -> Callable[[str], None]:
    """Says something at most every few seconds: there may be thousands of files."""
    printed_at = [time.monotonic()]

    def say(text: str) -> None:
        if time.monotonic() - printed_at[0] > PAUSE:
            printed_at[0] = time.monotonic()
            say(text)

    return say
