"""Decode one shard: its output and its errors file, written aside and renamed when complete."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from transduce.batch_inference.decoder import Decoded, Decoder
from transduce.batch_inference.job import Job
from transduce.batch_inference.rows import EMPTY, Group, Row, read_groups
from transduce.batch_inference.shards import Shard
from transduce.batch_inference.writers import writer_of
from transduce.storage import write_file, write_text

Note = Callable[[int], object]


def decode_shard(job: Job, shard: Shard, decoder: Decoder, note: Note) -> None:
    """Write the output of a shard; `note` is told the number of lines done.

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

    write_file(job.output(shard), write, announce=lambda _: _write_errors(job, shard, errors))


def decode_group(job: Job, group: Group, decoder: Decoder) -> list[Decoded]:
    """What becomes of each row: those with a problem have an empty output."""
    names = job.cells.names
    for row in group.rows:
        _check_keys(row, names)
        if decoder.needs_source and not row.problem and not row.source.strip():
            row.problem = EMPTY
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
        write_text(path, "".join(errors).encode("utf-8", "replace").decode("utf-8"))
    else:
        with suppress(FileNotFoundError):
            path.unlink()


def count_errors(job: Job) -> tuple[int, int]:
    """How many lines of finished shards have an empty output, and how many a warning."""
    empty = kept = 0
    for shard in job.shards:
        path = job.errors(shard)
        if path.is_file() and job.is_finished(shard):
            with path.open(encoding="utf-8") as file:
                for line in file:
                    lost = json.loads(line)["output"] == "empty"
                    empty, kept = empty + lost, kept + (not lost)
    return empty, kept
