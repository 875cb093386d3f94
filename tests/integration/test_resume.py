"""A run that is stopped, politely or not, goes on as if it had never stopped."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transduce.storage import read_tensors

# All that has a memory: dropout's generator, moments, the moving average, kept checkpoints.
SETTINGS = [
    "train.steps=120",
    "validation.every=20",
    "validation.limit=5",
    "train.log_every=5",
    "model.dropout=0.1",
    "train.ema=0.9",
    "train.average={of: best, count: 2}",
]


def start(task: Path, folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "transduce", "train", str(task / "tiny.yaml"), *SETTINGS]
    return subprocess.Popen(
        [*command, "--output", str(folder), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    told, _ = process.communicate(timeout=200)
    assert process.returncode == 0, told
    return told


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Read what it prints until a line holds the word."""
    assert process.stdout is not None
    seen = ""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        line = process.stdout.readline()
        assert line, f"it ended before it said {word!r}: {seen}"
        seen += line
        if word in line:
            return seen
    raise AssertionError(f"never said {word!r}: {seen}")


def steps_logged(folder: Path) -> list[int]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if record["kind"] == "train"]


def same(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "state/training.safetensors"):
        mine, facts = read_tensors(one / name)
        theirs, their_facts = read_tensors(other / name)
        assert mine.keys() == theirs.keys()
        different = [key for key in mine if not mine[key].equal(theirs[key])]
        assert not different, f"{name}: {different[:3]}"
        if "standing" in facts:
            for key in ("step", "position", "best", "best_step", "worse", "kept"):
                assert facts["standing"][key] == their_facts["standing"][key]
    assert steps_logged(one) == steps_logged(other) == list(range(5, 121, 5))


@pytest.fixture(scope="module")
def whole(task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(start(task, folder))
    return folder


def test_killed_and_resumed(task: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(task, folder)
    wait_for(process, "step 55/120")  # 15 updates beyond the last state on disk
    process.kill()
    process.wait()
    refused = start(task, folder)
    told, _ = refused.communicate(timeout=100)
    assert refused.returncode == 2
    assert "--resume" in told
    finish(start(task, folder, "--resume"))
    same(folder, whole)


def test_interrupted_and_resumed(task: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(task, folder)
    wait_for(process, "step 65/120")
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=100)
    assert process.returncode == 130
    assert f"transduce train {folder} --resume" in told
    finish(start(task, folder, "--resume"))
    same(folder, whole)


def test_resuming_under_another_shape_is_refused(task: Path, whole: Path) -> None:
    process = start(task, whole, "--resume", "model.width=64")
    told, _ = process.communicate(timeout=100)
    assert process.returncode == 2
    assert "model.width: 32" in told
    assert "Traceback" not in told


def test_a_longer_run_may_follow(task: Path, whole: Path, tmp_path: Path) -> None:
    """More steps are allowed, and said; so is another corpus."""
    folder, changed = tmp_path / "run", tmp_path / "task"
    shutil.copytree(whole, folder)
    shutil.copytree(task, changed)
    lines = (changed / "train.tsv").read_text().splitlines(keepends=True)
    (changed / "train.tsv").write_text("".join(lines[:-5]))
    told = finish(start(changed, folder, "--resume", "train.steps=140"))
    assert "train.steps is now 140 (was 120)" in told
    assert "warning: the training corpus had" in told
    assert steps_logged(folder)[-1] == 140
