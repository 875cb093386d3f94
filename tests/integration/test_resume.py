"""A run that is stopped, politely or not, goes on as if it had never stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from lives import Lives
from transduce.recipe import load_recipe
from transduce.storage import read_tensors
from transduce.training.train import finished_run

# All that has a memory: dropout's generator, moments, the moving average, kept checkpoints.
SETTINGS = [
    "train.steps=50",
    "validation.every=20",
    "validation.limit=5",
    "train.log_every=5",
    "model.dropout=0.1",
    "train.ema=0.9",
    "train.average={of: best, count: 2}",
]


def start(lives: Lives, task: Path, folder: Path, *more: str) -> int:
    arguments = ["train", str(task / "tiny.yaml"), *SETTINGS, "--output", str(folder), *more]
    return lives.start(*arguments)


def finish(lives: Lives, task: Path, folder: Path, *more: str) -> str:
    start(lives, task, folder, *more)
    assert lives.end() == 0, lives.reported
    return lives.reported


def wait_for(lives: Lives, word: str) -> None:
    """Until it has printed a word."""
    deadline = time.monotonic() + 120
    while word not in lives.reported:
        assert time.monotonic() < deadline, lives.reported
        time.sleep(0.002)


def steps_logged(folder: Path) -> list[int]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record["step"] for record in records if record["kind"] == "train"]


def same(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "state/training.safetensors"):
        mine, metadata = read_tensors(one / name)
        theirs, their_metadata = read_tensors(other / name)
        assert mine.keys() == theirs.keys()
        different = [key for key in mine if not mine[key].equal(theirs[key])]
        assert not different, f"{name}: {different[:3]}"
        if "standing" in metadata:
            for key in ("step", "position", "best", "best_step", "worse", "kept"):
                assert metadata["standing"][key] == their_metadata["standing"][key]
    assert steps_logged(one) == steps_logged(other) == list(range(5, 51, 5))


@pytest.fixture(scope="module")
def whole(lives: Lives, task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    finish(lives, task, folder)
    return folder


@pytest.mark.slow  # test_kill.py kills runs in many more places
def test_killed_and_resumed(lives: Lives, task: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(lives, task, folder)
    wait_for(lives, "step 35/50")  # 15 updates beyond the last state on disk
    os.kill(process, signal.SIGKILL)
    assert lives.end() == -signal.SIGKILL
    start(lives, task, folder)
    assert lives.end() == 2
    assert "--resume" in lives.reported
    finish(lives, task, folder, "--resume")
    same(folder, whole)


def test_interrupted_and_resumed(lives: Lives, task: Path, whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(lives, task, folder)
    wait_for(lives, "step 25/50")
    os.kill(process, signal.SIGINT)
    assert lives.end() == 130
    assert f"transduce train {folder} --resume" in lives.reported
    finish(lives, task, folder, "--resume")
    same(folder, whole)


def test_resuming_under_another_shape_is_refused(lives: Lives, task: Path, whole: Path) -> None:
    start(lives, task, whole, "--resume", "model.width=64")
    assert lives.end() == 2
    assert "model.width: 32" in lives.reported
    assert "Traceback" not in lives.reported


def test_a_longer_run_may_follow(lives: Lives, task: Path, whole: Path, tmp_path: Path) -> None:
    """More steps are allowed, and said; so is another corpus."""
    folder, changed = tmp_path / "run", tmp_path / "task"
    shutil.copytree(whole, folder)
    shutil.copytree(task, changed)
    lines = (changed / "train.tsv").read_text().splitlines(keepends=True)
    (changed / "train.tsv").write_text("".join(lines[:-5]))
    reported = finish(lives, changed, folder, "--resume", "train.steps=70")
    assert "train.steps is now 70 (was 50)" in reported
    assert "warning: the training corpus had" in reported
    assert steps_logged(folder)[-1] == 70


def test_whether_the_time_is_over_counts_the_longest_validation(
    whole: Path, tmp_path: Path
) -> None:
    """The checkpoint was written within the last validation; the metrics know how long it took."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    metrics = json.loads((folder / "metrics.json").read_bytes())
    assert metrics["training"]["longest_validation"] > 0
    minutes = (metrics["training"]["elapsed"] + 60) / 60
    recipe = load_recipe(folder / "recipe.yaml", ["train.steps=100", f"train.minutes={minutes}"])
    for longest, ended in ((59.0, False), (61.0, True)):
        metrics["training"]["longest_validation"] = longest
        (folder / "metrics.json").write_text(json.dumps(metrics), "utf-8")
        assert (finished_run(folder, recipe) is not None) == ended
