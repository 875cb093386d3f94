"""Progress: what a person sees of a run."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from clock import Clock
from transduce.training.progress import Progress, StepRecord


def record(step: int, **others: Any) -> dict[str, Any]:
    return {"step": step, "loss": 2.0 / step, "lr": 3e-4, "tokens_per_second": 12300.4, **others}


def test_plain_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with Progress(tmp_path, 5000, terminal=False) as progress:
        for step in range(1, 501):
            clock.now += 0.0337
            progress.step(StepRecord(step, 400, 3e-4))
        progress.log(record(500, loss=1.2341))
        progress.validation(500, {"loss": 1.5, "bleu": 31.234}, best=True)
        progress.validation(1000, {"loss": 1.6, "bleu": 30.0}, best=False)
        progress.print_line("Stopping: [nothing] got better.")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "step 500/5000  loss 1.234  12,300 tok/s  lr 3.0e-04  3 min left",
        "step 500/5000  valid  loss 1.500  bleu 31.23  best",
        "step 1000/5000  valid  loss 1.600  bleu 30.00",
        "Stopping: [nothing] got better.",
    ]


def test_the_objective_is_reported_where_it_is_another_than_the_loss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress(tmp_path, 10, terminal=False) as progress:
        progress.log(record(5, loss=1.25, objective=2.5))
        progress.log(record(6, loss=1.25, objective=1.25))
        assert "objective" not in progress._bar(200).plain
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("step 5/10  loss 1.250  objective 2.500  ")
    assert second.startswith("step 6/10  loss 1.250  12,300 tok/s")


def test_a_run_that_the_clock_ends_has_no_more_left_than_the_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with Progress(tmp_path, 5000, terminal=False, minutes=2) as progress:
        for step in range(1, 91):
            clock.now += 1.0
            progress.step(StepRecord(step, 400, 3e-4, seconds=float(step)))
        progress.log(record(90))
        line = progress._bar(120).plain
    assert capsys.readouterr().err.endswith("30 s left\n")
    assert "75 %" in line
    assert "30 s left" in line


def test_the_updates_that_the_clock_leaves_time_for_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with Progress(tmp_path, 63_960, terminal=False, minutes=2) as progress:
        for step in range(1, 25):
            clock.now += 1.5
            progress.step(StepRecord(step, 400, 3e-4, seconds=1.5 * step))
        progress.log(record(24))
        progress.validation(24, {"loss": 1.5}, best=True)
        assert "24/~80" in progress._bar(120).plain
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("  ")[0] for line in lines[-2:]] == ["step 24/~80"] * 2


def test_a_file_gets_lines_and_the_time_left_before_the_first_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    with Progress(tmp_path, 100, terminal=False, log_every=50) as progress:
        for step in range(1, 51):
            clock.now += 2.0
            progress.step(StepRecord(step, 400, 3e-4))
        progress.log(record(50))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1/100", "5/100", "20/100", "50/100"]
    assert lines[1].endswith("3 min left")
    with Progress(tmp_path / "a", 100, terminal=False, log_every=50, minutes=2) as progress:
        progress.step(StepRecord(1, 400, 3e-4))
    # Whether the time is enough for all of them is not known before two updates.
    assert capsys.readouterr().err.split()[1] == "1"
    with Progress(tmp_path / "b", 100, terminal=False, log_every=5) as progress:
        for step in range(1, 7):
            progress.step(StepRecord(step, 400, 3e-4))
            if step == 5:
                progress.log(record(5))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["1/100", "5/100"]  # none is there twice


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
        for part in ("8,000 tok/s", "lr 3.0e-04", "6 h 57 min left", "bleu 31.20", "best 32.00"):
            assert part in line


def test_a_step_costs_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not a benchmark: the bound is a hundred times what it takes, and would catch drawing or
    # writing inside `step`.
    monkeypatch.setenv("TERM", "xterm")
    with Progress(tmp_path, 10_000, terminal=True) as progress:
        begin = time.process_time()
        for step in range(1, 2001):
            progress.step(StepRecord(step, 100, 1e-3, loss=1.0))
        assert (time.process_time() - begin) / 2000 < 2e-4
