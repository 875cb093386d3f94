"""A worker: takes shards that nobody has claimed, and decodes each, until all are finished.

A claim is an exclusive lock on a file for each shard. The system releases a lock when its process
ends, however it ends, so no claim is ever stale. A claim only saves work: a shard that two
processes decode has the same output twice, and the second replaces the first in one step. Where a
file system has no locks, every claim is granted; workers begin at different shards, so that little
is done twice."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transduce.batch_inference.decoder import Decoded, Decoder
from transduce.batch_inference.inputs import Shard
from transduce.batch_inference.job import Job
from transduce.batch_inference.rows import EMPTY, Group, Row, read_groups
from transduce.batch_inference.writers import writer_of
from transduce.errors import CheckpointError
from transduce.storage.locks import take_lock
from transduce.storage.outputs import write_at, write_text_at

Note = Callable[[int], object]
"""Tells how many lines are done."""


@contextmanager
def claimed(path: Path) -> Iterator[Note | None]:
    """Hold the claim; yields None where another process has it.

    The file holds the number of lines done so far, for those who show progress.
    """
    try:
        # Network drives give an exclusive lock only on a file that is open for writing.
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written ({error.strerror}); make the folder one that you may "
            f"write to, or choose another"
        ) from None
    try:
        if not take_lock(handle):
            yield None
            return

        def note(lines: int) -> None:
            with suppress(OSError):  # only progress is lost
                os.pwrite(handle, b"%010d" % lines, 0)

        yield note
        with suppress(OSError):
            path.unlink()
    finally:
        os.close(handle)


def lines_in(path: Path) -> int:
    """The lines done of a shard that is being decoded; 0 where nobody does."""
    try:
        return int(path.read_bytes() or b"0")
    except (OSError, ValueError):
        return 0


def decode_shard(job: Job, shard: Shard, decoder: Decoder, note: Note) -> None:
    """Write the output of a shard; `note` is called with the number of lines done.

    The errors file is in place before the output: a shard with an output is finished. Raises
    DataError for an input that has changed, CheckpointError where a file cannot be written.
    """
    path = job.check_input(shard.file)
    errors: list[str] = []

    def write(part: Path) -> None:
        done = 0
        with writer_of(part, job.format, job.table, job.cells) as writer:
            for group in read_groups(path, job.table, shard):
                found = decode_group(job, group, decoder)
                for row, one in zip(group.rows, found, strict=True):
                    if one.problem or one.warning:
                        errors.append(_entry(path, row, one))
                writer.write(group, [one.values(job.cells.names) for one in found])
                done += len(group.rows)
                note(done)

    write_at(job.output(shard), write, job.work, lambda _: _write_errors(job, shard, errors))


def decode_group(job: Job, group: Group, decoder: Decoder) -> list[Decoded]:
    """What becomes of each row: those with a problem have an empty output."""
    names = job.cells.names
    for row in group.rows:
        _check_keys(row, names)
        if decoder.needs_source and not row.problem and not row.source.strip():
            row.problem = EMPTY
        if row.tags and not row.problem:
            row.problem = decoder.problem_of(row.tags)
    filled = [row for row in group.rows if not row.problem]
    found = iter(decoder.decode([row.source for row in filled]) if filled else [])
    decoded = [Decoded(problem=row.problem) if row.problem else next(found) for row in group.rows]
    if job.table.kind == "jsonl" and job.format in ("tsv", "csv", "parquet"):
        for row, one in zip(group.rows, decoded, strict=True):
            if lost := [key for key in row.fields if key not in job.table.names]:
                one.warning = one.warning or f"the output has no column for the key {lost[0]}"
    return decoded


def _check_keys(row: Row, names: list[str]) -> None:
    """An object of a JSONL file that has a key of the output already is a bad row."""
    if isinstance(row.fields, dict) and (taken := [name for name in names if name in row.fields]):
        row.problem = row.problem or f"the line has a key {taken[0]} already"
        row.fields = {key: text for key, text in row.fields.items() if key not in taken}
        row.whole = ""


def _entry(path: str, row: Row, one: Decoded) -> str:
    values: dict[str, Any] = {"file": path, "line": row.line, "reason": one.problem or one.warning}
    values["output"] = "empty" if one.problem else "kept"
    return json.dumps(values, ensure_ascii=False) + "\n"


def _write_errors(job: Job, shard: Shard, errors: list[str]) -> None:
    path = job.errors(shard)
    if errors:
        text = "".join(errors).encode("utf-8", "replace").decode("utf-8")
        write_text_at(path, text, job.work)
    elif path.is_file():  # of an earlier try; who may write to a store may not remove from it
        with suppress(FileNotFoundError):
            path.unlink()


def count_errors(job: Job) -> tuple[int, int]:
    """How many lines of finished shards have an empty output, and how many a warning."""
    empty = kept = 0
    waiting = {shard.number for shard in job.unfinished(job.shards)}
    there = job.names_of_errors()
    for shard in job.shards:
        path = job.errors(shard)
        if path.name in there and shard.number not in waiting:
            with path.open("rb") as file:
                for line in file:
                    lost = json.loads(line)["output"] == "empty"
                    empty, kept = empty + lost, kept + (not lost)
    return empty, kept


PAUSE = 0.5  # seconds before looking again for shards whose worker has died


def work(
    job: Job,
    shards: Sequence[Shard],
    decoder: Decoder,
    beat: Callable[[], object] = lambda: None,
) -> None:
    """Decode the shards that are neither finished nor claimed by another process.

    Returns when all of them are finished, by whomever. `beat` is called now and then.
    """
    pending = list(shards)
    while pending := job.unfinished(pending):
        progress = False
        for shard in pending:
            progress |= take(job, shard, decoder, beat)
        if not progress:
            beat()
            time.sleep(PAUSE)


def take(job: Job, shard: Shard, decoder: Decoder, beat: Callable[[], object]) -> bool:
    """Decode a shard, unless it is finished or claimed; returns whether it was decoded here."""
    if job.is_finished(shard):
        return False
    with claimed(job.claim(shard)) as note:
        # Another worker may have finished it between the two lines.
        if note is None or job.is_finished(shard):
            return False

        def note_and_beat(lines: int) -> None:
            note(lines)
            beat()

        note_and_beat(0)
        decode_shard(job, shard, decoder, note_and_beat)
        return True


def ends_with(parent: int) -> Callable[[], None]:
    """A function that ends this process where its parent has died; what it has half-written is
    removed."""

    def check() -> None:
        if os.getppid() != parent:
            raise SystemExit(1)

    return check


def rotated(shards: Sequence[Shard], worker: int, workers: int) -> list[Shard]:
    """The shards in an order of its own for each worker: neighbours are read one after another."""
    start = worker * len(shards) // workers
    return [*shards[start:], *shards[:start]]
