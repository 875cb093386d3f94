"""Claims, progress, and what an error of the model costs."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from forked import Forked
from transduce.batch_inference.decoder import Decoder
from transduce.batch_inference.inputs import InputFile, Shard, Table
from transduce.batch_inference.job import Job, Settings
from transduce.batch_inference.progress import Progress
from transduce.batch_inference.worker import claimed, ends_with, lines_in, rotated, take
from transduce.decoding.output import Output
from transduce.tasks import Model

HOLDER = """
import sys, time
from pathlib import Path
from transduce.batch_inference.worker import claimed
with claimed(Path(sys.argv[1])) as note:
    note(42)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks of files")
def test_a_claim_is_exclusive_and_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "claim"
    holder = Forked([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        with claimed(path) as note:
            assert note is None
        assert lines_in(path) == 42
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        with claimed(path) as note:
            assert note is not None
    assert not path.exists()
    assert lines_in(path) == 0


def job_in(folder: Path) -> Job:
    shards = [Shard(number, 0, 0, 1 + 100 * number, 100) for number in range(4)]
    (folder / ".claims").mkdir()
    return Job(folder, "model", [], Settings(), Table("text"), [], shards)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_counts_lines_and_tells_the_time_left(tmp_path: Path) -> None:
    job, now = job_in(tmp_path), [0.0]
    job.output(job.shards[0]).write_text("")  # finished earlier: not part of the speed
    stream = Terminal()
    progress = Progress(job, job.shards, stream, lambda: now[0])
    progress.show()
    assert stream.getvalue() == ""
    job.output(job.shards[2]).write_text("")
    job.claim(job.shards[3]).write_text("0000000050")
    now[0] = 10.0
    progress.show()
    assert stream.getvalue().endswith("2/4 shards, 250/400 lines (62 %), 15 lines/s, 10 s left")
    progress.show()  # a moment later
    assert stream.getvalue().count("shards") == 1
    for shard in job.shards:
        job.output(shard).write_text("")
    progress.show(force=True)
    assert stream.getvalue().endswith("4/4 shards, 400/400 lines (100 %), 30 lines/s\n")


def test_progress_in_a_file_begins_soon(tmp_path: Path) -> None:
    job, now, stream = job_in(tmp_path), [0.0], io.StringIO()
    progress = Progress(job, job.shards, stream, lambda: now[0])
    reported = []
    for second in range(1, 70):
        now[0] = float(second)
        progress.show()
        reported.append(stream.getvalue().count("\n"))
    assert [reported.index(count) + 1 for count in (1, 2, 3)] == [5, 35, 65]


def test_workers_begin_at_different_shards(tmp_path: Path) -> None:
    shards = job_in(tmp_path).shards
    orders = [rotated(shards, worker, 3) for worker in range(3)]
    assert [order[0].number for order in orders] == [0, 1, 2]
    assert all(sorted(order) == shards for order in orders)


def test_a_shard_that_was_finished_while_it_was_claimed_is_not_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_in(tmp_path)
    answers = iter([False, True])
    monkeypatch.setattr(Job, "is_finished", lambda self, shard: next(answers))
    decoder = Decoder(cast(Model, None), {})
    assert not take(job, job.shards[0], decoder, lambda: None)
    assert not job.claim(job.shards[0]).exists()


class Failing:
    """A model that fails on some sources, alone or among others."""

    def __init__(self, bad: str) -> None:
        self.bad = bad

    def run(self, sources: Sequence[str], **settings: Any) -> list[Output]:
        for source in sources:
            if source in self.bad:
                raise ValueError(f"no {source}")
        return [Output(source.upper(), -1.0) for source in sources]

    def show(self, output: Output) -> str:
        return output.text


def test_an_error_costs_the_sources_that_cause_it() -> None:
    found = Decoder(cast(Model, Failing("bd")), {}).decode(["a", "b", "c", "d"])
    assert [one.text for one in found] == ["A", "", "C", ""]
    assert [one.problem for one in found] == [
        "",
        "the model failed on it (ValueError: no b)",
        "",
        "the model failed on it (ValueError: no d)",
    ]


def test_an_error_of_every_source_is_not_one_of_sources() -> None:
    decoder = Decoder(cast(Model, Failing("abcd")), {})
    with pytest.raises(ValueError, match="no a"):
        decoder.decode(["a", "b"])
    assert decoder.decode(["a"])[0].problem


def test_a_worker_whose_parent_has_died_removes_what_it_was_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_in(tmp_path)
    (tmp_path / "in.txt").write_text("a\nb\n")
    inputs = [InputFile.identify(str(tmp_path / "in.txt"))]
    job = Job(tmp_path, "model", [], Settings(), Table("text"), inputs, [Shard(0, 0, 0, 1, 2)])

    class Dying(Failing):
        def run(self, sources: Sequence[str], **settings: Any) -> list[Output]:
            assert list(tmp_path.rglob("*.part"))
            monkeypatch.setattr(os, "getppid", lambda: 1 + parent)
            return super().run(sources, **settings)

    parent = os.getppid()
    decoder = Decoder(cast(Model, Dying("")), {})
    with pytest.raises(SystemExit):
        take(job, job.shards[0], decoder, ends_with(parent))
    assert not list(tmp_path.rglob("*.part"))
    assert not job.is_finished(job.shards[0])
