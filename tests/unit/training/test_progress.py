"""Progress: what is printed and logged, read back as a user would."""

from __future__ import annotations

import json
import math
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transduce.errors import DataError, TrainingError
from transduce.training import progress as module
from transduce.training.progress import Pace, Progress, StepRecord, read_log


class Clock:
    """A clock that goes on only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "perf_counter", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def record(step: int, **others: Any) -> dict[str, Any]:
    return {"step": step, "loss": 2.0 / step, "lr": 3e-4, "tokens_per_second": 12300.4, **others}


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress(tmp_path, 5000, terminal=False) as progress:
        for step in range(1, 501):
            clock.now += 0.0337
            progress.step(StepRecord(step, 400, 3e-4))
        progress.log(record(500, loss=1.2341))
        progress.validation(500, {"loss": 1.5, "bleu": 31.234}, best=True)
        progress.validation(1000, {"loss": 1.6, "bleu": 30.0}, best=False)
        progress.say("Stopping: [nothing] got better.")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "step 500/5000  loss 1.234  12,300 tok/s  lr 3.0e-04  2:32 left",
        "step 500/5000  valid  loss 1.500  bleu 31.23  best",
        "step 1000/5000  valid  loss 1.600  bleu 30.00",
        "Stopping: [nothing] got better.",
    ]


def test_a_run_that_the_clock_ends_has_no_more_left_than_the_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with Progress(tmp_path, 5000, terminal=False, minutes=2) as progress:
        for step in range(1, 91):
            clock.now += 1.0
            progress.step(StepRecord(step, 400, 3e-4, seconds=float(step)))
        progress.log(record(90))
        line = progress._bar(120).plain
    assert capsys.readouterr().err.endswith("0:30 left\n")
    assert "75 %" in line
    assert "0:30 left" in line


def test_no_control_characters_where_stderr_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    with Progress(tmp_path, 10) as progress:
        progress.step(StepRecord(1, 10, 1e-3, loss=2.0))
        progress.log(record(1))
        progress.validation(1, {"loss": 1.0}, best=True)
    printed = capsys.readouterr().err
    assert "step 1/10" in printed
    assert not re.search(r"[^\n\x20-\x7e]", printed)


def test_a_terminal_gets_one_line_that_redraws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with Progress(tmp_path, 10, terminal=True) as progress:
        progress.step(StepRecord(5, 10, 1e-3, loss=2.0))
        progress.log(record(5))
        progress.validation(5, {"loss": 1.0, "per": 8.0}, best=True)
    printed = capsys.readouterr().err
    assert "\x1b[" in printed
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    assert " 50 %" in plain
    assert "valid per 8.00  best 8.00" in plain
    assert "step 5/10  valid  loss 1.000  per 8.00  best\n" in plain
    # Log lines go to the file alone: the bar already shows them.
    assert "step 5/10  loss" not in plain


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_the_bar_fits_its_terminal(tmp_path: Path, clock: Clock, width: int) -> None:
    with Progress(tmp_path, 100_000, terminal=False) as progress:
        for step in (49_998, 49_999, 50_000):
            clock.now += 0.5
            progress.step(StepRecord(step, 4000, 3e-4, loss=1.234))
        progress._valid = {"step": 40_000, "loss": 1.5, "bleu": 31.2}
        progress._best = {"step": 30_000, "loss": 1.5, "bleu": 32.0}
        line = progress._bar(width).plain
    assert len(line) < width
    assert "50 %" in line
    if width >= 40:
        assert "50000/100000" in line
        assert "loss 1.234" in line
    if width >= 120:
        for part in ("8,000 tok/s", "lr 3.0e-04", "6:56:40 left", "bleu 31.20", "best 32.00"):
            assert part in line


def test_log_is_read_back(tmp_path: Path) -> None:
    with Progress(tmp_path / "new" / "run", 10, terminal=False) as progress:
        progress.log(record(1, gradient_norm=0.5, padding=0.1, seconds=3.2))
        progress.log(record(2, loss=math.nan, gradient_norm=np.float32(0.25)))
        progress.validation(2, {"loss": 1.5, "bleu": 30.0}, best=True)
    path = tmp_path / "new" / "run" / "log.jsonl"
    first, second, third = read_log(path)
    assert first == {"kind": "train", **record(1, gradient_norm=0.5, padding=0.1, seconds=3.2)}
    assert second["loss"] is None
    assert second["gradient_norm"] == 0.25
    assert third == {"kind": "valid", "step": 2, "loss": 1.5, "bleu": 30.0, "best": True}
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_torn_last_line_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"kind": "train", "step": 1}\n{"kind": "train", "st')
    assert read_log(path) == [{"kind": "train", "step": 1}]
    path.write_bytes(b'{"kind": "train", "step": 1}\n{"name": "\xc3')
    assert read_log(path) == [{"kind": "train", "step": 1}]
    path.write_bytes(b'{"kind": "tra\n{"kind": "train", "step": 1}\n')
    with pytest.raises(DataError, match="line 1"):
        read_log(path)
    with pytest.raises(DataError, match="no training log"):
        read_log(tmp_path / "other.jsonl")


def test_resuming_keeps_each_step_once(tmp_path: Path) -> None:
    with Progress(tmp_path, 10, terminal=False) as progress:
        for step in range(1, 7):
            progress.log(record(step))
            if step % 2 == 0:
                progress.validation(step, {"loss": 1.0, "bleu": float(step)}, best=True)
    path = tmp_path / "log.jsonl"
    with path.open("a") as file:
        file.write('{"kind": "train", "step": 7, "lo')  # killed here
    with Progress(tmp_path, 10, resume_step=4, terminal=False) as progress:
        assert "best 4.00" in progress._bar(200).plain
        for step in range(5, 11):
            progress.log(record(step, loss=9.0))
    records = read_log(path)
    assert [r["step"] for r in records if r["kind"] == "train"] == list(range(1, 11))
    assert [r["step"] for r in records if r["kind"] == "valid"] == [2, 4]
    assert records[-1]["loss"] == 9.0
    assert not list(tmp_path.glob("*.new"))
    losses = scalars(tmp_path, "train/loss")
    assert [step for step, _ in losses] == list(range(1, 11))
    assert losses[-1] == (10, 9.0)


def test_a_fresh_start_begins_a_fresh_log(tmp_path: Path) -> None:
    for _ in range(2):
        with Progress(tmp_path, 10, terminal=False) as progress:
            progress.validation(0, {"loss": 9.0}, best=True)
            progress.log(record(1))
    assert [r["step"] for r in read_log(tmp_path / "log.jsonl")] == [0, 1]


def test_tensorboard_reads_it(tmp_path: Path) -> None:
    with Progress(tmp_path, 10, terminal=False) as progress:
        progress.log(record(1))
        progress.log(record(2))
        progress.validation(2, {"loss": 1.5, "bleu": 30.0}, best=True)
    assert scalars(tmp_path, "train/loss") == [(1, 2.0), (2, 1.0)]
    assert scalars(tmp_path, "valid/bleu") == [(2, 30.0)]
    assert scalars(tmp_path, "train/lr")[0][1] == pytest.approx(3e-4)


@pytest.mark.parametrize("cause", ["folder", "package"])
def test_training_goes_on_without_tensorboard(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    cause: str,
) -> None:
    if cause == "folder":
        (tmp_path / "tensorboard").write_text("a file stands where the folder should be")
    else:
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with Progress(tmp_path, 10, terminal=False) as progress:
        progress.log(record(1))
        progress.log(record(2))
    assert capsys.readouterr().err.count("TensorBoard logs are off") == 1
    assert len(read_log(tmp_path / "log.jsonl")) == 2


def test_a_disk_that_is_full_for_tensorboard_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(writer: RecordWriter, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    told: list[threading.ExceptHookArgs] = []
    hook = told.append
    monkeypatch.setattr(threading, "excepthook", hook)
    monkeypatch.setattr(RecordWriter, "write", full)
    with Progress(tmp_path, 10, terminal=False) as progress:
        progress.validation(1, {"loss": 1.0}, best=True)
        stranger = threading.Thread(target=lambda: 1 / 0)
        stranger.start()
        stranger.join()
    said = capsys.readouterr().err
    assert said.count("TensorBoard logs are off: [Errno 28] No space left on device") == 1
    assert [arguments.exc_type for arguments in told] == [ZeroDivisionError]
    assert threading.excepthook is hook


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(TrainingError, match="could not be written"), Progress(tmp_path / "run", 10):
        pass


def test_time_left_leaves_out_validations(clock: Clock) -> None:
    pace = Pace()
    assert pace.seconds_left(100) is None
    for step in range(1, 101):
        clock.now += 30.0 if step == 1 else 0.1  # the first update compiles
        pace.step(step, 500)
        if step % 10 == 0:
            clock.now += 60.0
            pace.pause()
    assert pace.seconds_left(100) == pytest.approx(10.0)
    assert pace.tokens_per_second == pytest.approx(5000)
    assert pace.seconds_left(-1) == 0


def test_time_left_follows_a_change_of_speed(clock: Clock) -> None:
    pace = Pace()
    for step in range(1, 501):
        clock.now += 0.1 if step <= 200 else 0.3
        pace.step(step, 500)
    assert pace.seconds_left(100) == pytest.approx(30.0, rel=0.02)


def test_a_step_costs_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not a benchmark: the bound is a hundred times what it takes, and would catch drawing or
    # writing inside `step`.
    monkeypatch.setenv("TERM", "xterm")
    with Progress(tmp_path, 10_000, terminal=True) as progress:
        begin = time.process_time()
        for step in range(1, 2001):
            progress.step(StepRecord(step, 100, 1e-3, loss=1.0))
        assert (time.process_time() - begin) / 2000 < 2e-4


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """Closing the log writes once more what could not be written: that error must not win."""

    def run() -> None:
        with (
            Progress(tmp_path, 10, terminal=False) as progress,
            Path("/dev/full").open("a") as full,
        ):
            assert progress._log is not None
            os.dup2(full.fileno(), progress._log.fileno())
            progress.log(record(1))

    with pytest.raises(TrainingError, match=r"log\.jsonl could not be written \(No space left"):
        run()
