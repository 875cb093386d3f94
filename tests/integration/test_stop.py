"""Signals that ask a run to stop: it saves, says so, and goes on later."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from forked import Forked
from lives import Lives, check_same, command
from transduce.storage import read_tensors
from transduce.storage.locks import held
from transduce.training.run_directory.checkpoint import recover_state

STATE = "state/training.safetensors"


def wait_for_log(folder: Path, lines: int) -> None:
    log = folder / "log.jsonl"
    deadline = time.monotonic() + 100
    while not (log.exists() and log.read_bytes().count(b"\n") >= lines):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def step_saved(folder: Path) -> int:
    return int(read_tensors(folder / STATE)[1]["standing"]["step"])


def test_asked_to_stop(task: Path, undisturbed: Path, lives: Lives, tmp_path: Path) -> None:
    folder, before = tmp_path / "run", 0
    for asked in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process = lives.start_and_hold(25, *command(task, folder))
        os.kill(process, asked)
        lives.go()
        assert lives.end() == 130, lives.reported
        step = step_saved(folder)
        assert before + 20 <= step <= before + 26
        before = step
        assert f"Stopped at update {step}; a checkpoint is saved" in lives.reported
    lives.start(*command(task, folder))
    assert lives.end() == 0, lives.reported
    check_same(folder, undisturbed)


def test_what_nohup_ignores_stays_ignored(task: Path, lives: Lives, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    hold = {"file": "log.jsonl", "place": "hold", "turn": 5, "seed": 0}
    steps = "train.steps=20"
    process = lives.start(*command(task, folder, steps), death=hold, ignored=["SIGHUP"])
    wait_for_log(folder, 5)
    os.kill(process, signal.SIGHUP)
    lives.go()
    assert lives.end() == 0, lives.reported


def test_asked_twice(task: Path, lives: Lives, tmp_path: Path) -> None:
    """It stops where it is, without a word; the state is the one of the last validation."""
    folder = tmp_path / "run"
    death = {"file": "training.safetensors", "place": "pause", "turn": 2, "seed": 1}
    process = lives.start(*command(task, folder), death=death)
    lives.wait_for(lambda: lives.report is not None)  # it is about to rename its second state
    os.kill(process, signal.SIGINT)
    lives.wait_for((lives.folder / "report.asked").exists)
    os.kill(process, signal.SIGINT)
    assert lives.end() == 130, lives.reported
    assert "Traceback" not in lives.reported
    assert recover_state(folder) is not None
    assert step_saved(folder) == 10
    assert not list(folder.rglob("*.part"))
    lives.start(*command(task, folder, "train.steps=30"))
    assert lives.end() == 0, lives.reported
    assert step_saved(folder) == 30


def test_a_terminal_that_goes_away(task: Path, tmp_path: Path) -> None:
    """Its window is closed: nothing can be printed any more, and a checkpoint is saved."""
    folder = tmp_path / "run"
    terminal, end = os.openpty()
    process = Forked[bytes](
        [sys.executable, "-m", "transduce", *command(task, folder, "train.steps=100000")],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        terminal=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"},
    )
    os.close(end)
    wait_for_log(folder, 25)
    os.close(terminal)
    process.wait(timeout=200)
    assert 20 < step_saved(folder) < 100_000


def test_a_folder_has_one_run_at_a_time(task: Path, lives: Lives, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with held(folder) as mine:
        assert mine
        lives.start(*command(task, folder))
        assert lives.end() == 2, lives.reported
        assert f"another run is training in {folder}" in " ".join(lives.reported.split())
    lives.start(*command(task, folder, "train.steps=20"))
    assert lives.end() == 0, lives.reported
