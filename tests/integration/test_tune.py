"""A search in processes of its own: killed, continued, and joined by another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optional import skip_without
from transduce.training.run_directory.checkpoint import STATE
from tuning_study import RECIPE, WORDS

skip_without("optuna")


def start(folder: Path, *more: str) -> subprocess.Popen[str]:
    typed = ["tune", "my.yaml", "--trials", "4", "--search", "train.lr=1e-3..0.1", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "transduce", *typed],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def steps_logged(run: Path) -> list[int]:
    records = map(json.loads, (run / "log.jsonl").read_text("utf-8").splitlines())
    return [record["step"] for record in records if record["kind"] == "valid"]


@pytest.mark.slow  # starts several Pythons
def test_a_killed_search_goes_on_and_another_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, words in (("train", WORDS[:9]), ("valid", WORDS[9:])):
        lines = "".join(f"{word}\t{word[::-1]}\n" for word in words)
        (tmp_path / f"{name}.tsv").write_text(lines, "utf-8")
    text = RECIPE.replace("steps: 9", "steps: 900").replace("every: 1", "every: 50")
    (tmp_path / "my.yaml").write_text(text, "utf-8")
    trials = tmp_path / "runs" / "backwards-tune" / "trials"
    killed = start(tmp_path)
    until = time.monotonic() + 300
    while not (trials / "001" / STATE).exists():  # the second trial has a checkpoint
        assert killed.poll() is None, killed.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    both = [start(tmp_path), start(tmp_path)]
    for one in both:
        said, _ = one.communicate(timeout=300)
        assert one.returncode == 0, said
        assert "goes on: it has 2 trials" in said
        assert said.count("in full") >= 1
    runs = sorted(path for path in trials.iterdir() if path.is_dir())
    assert [run.name for run in runs] == ["000", "001", "002", "003"]
    lengths = [steps_logged(run) for run in runs]
    for steps in lengths:  # no validation twice, none left out
        assert steps == list(range(50, steps[-1] + 1, 50))
    assert sorted(steps[-1] for steps in lengths)[-1] == 900
    assert sum(steps[-1] == 900 for steps in lengths) == 1
