"""Runs that are started, killed and compared, as several tests need them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from forked import Forked
from transduce.storage import read_tensors

STEPS = 120
# All that has a memory: dropout's generator, moments, the moving average, kept checkpoints,
# patience, sums over updates that have not been logged, a place in the middle of an epoch.
SETTINGS = [
    "model.width=16",
    "model.dropout=0.2",
    "model.tie_embeddings=none",
    "model.encoder={kind: recurrent, cell: gru, layers: 1, bidirectional: true}",
    "model.decoder={kind: recurrent, cell: gru, layers: 1, attention: dot}",
    "train.batch_tokens=64",
    "train.ema=0.9",
    "train.average={of: best, count: 3}",
    f"train.steps={STEPS}",
    "train.log_every=1",
    "validation.every=10",
    "validation.limit=2",
    "validation.beam=1",
    "validation.metric=loss",
    "metrics=[exact]",
    f"validation.patience={STEPS // 10}",
]
Command = Callable[..., "subprocess.CompletedProcess[str]"]
CLOCK = ("seconds", "tokens_per_second")


class Lives:
    """Runs in processes of their own, one after the other, by the script of `mortal.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cache = {"XDG_CACHE_HOME": str(cache_in(folder))}
        self._running: Forked[str] | None = None

    def start(
        self,
        *arguments: str,
        death: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        errors: str | Path | None = None,
        folder: str | Path | None = None,
        **more: Any,
    ) -> int:
        """Start a run in a folder; the number of its process. `death` and `more` are told in
        `mortal.py`; `errors` is a file for standard error."""
        self._give_up()
        reported, report = self.folder / "told", self.folder / "report.json"
        report.unlink(missing_ok=True)
        for ending in (".go", ".asked"):
            report.with_suffix(ending).unlink(missing_ok=True)
        if death is not None:
            death = {**death, "report": str(report)}
        with ExitStack() as files:
            out = files.enter_context(reported.open("wb"))
            err = files.enter_context(Path(errors).open("wb")) if errors else subprocess.STDOUT
            self._running = self._forked(
                {"arguments": arguments, "death": death, **more},
                {**self._cache, **(environment or {})},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        return self._running.pid

    def _forked(self, life: Any, environment: dict[str, str], **others: Any) -> Forked[str]:
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        return Forked(
            [sys.executable, "-m", "mortal", json.dumps(life)],
            text=True,
            env={**os.environ, **own, **environment},
            **others,
        )

    def _give_up(self) -> None:
        """End the run of a test that was given up: no other test has to suffer for it."""
        if self._running is not None:
            self._running.kill()
            self.end()

    def start_and_hold(self, lines: int, *arguments: str) -> int:
        """Start a run; the number of its process, once it has written so many lines of the log
        and waits. `go` lets it go on."""
        death = {"file": "log.jsonl", "place": "hold", "turn": lines, "seed": 0}
        process = self.start(*arguments, death=death)
        self.wait_for(lambda: self.report is not None)
        return process

    def wait_for(self, met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not met():
            assert time.monotonic() < deadline, self.reported
            time.sleep(0.002)

    def go(self) -> None:
        (self.folder / "report.go").touch()

    def end(self) -> int:
        """Wait for the run's end: its exit status, or minus the signal that killed it."""
        assert self._running is not None
        status = self._running.wait(timeout=500)
        self._running = None
        return status

    def run(self, *arguments: object, text: str = "") -> subprocess.CompletedProcess[str]:
        """A command from its start to its end, in this folder and environment: as subprocess.run
        would have it, without the seconds that loading takes."""
        self._give_up()
        typed = [str(word) for word in arguments]
        own = {} if "XDG_CACHE_HOME" in os.environ else self._cache
        pipe = subprocess.PIPE
        with self._forked({"arguments": typed}, own, stdin=pipe, stdout=pipe, stderr=pipe) as it:
            try:
                out, err = it.communicate(text, timeout=500)
            except BaseException:
                it.kill()
                raise
        return subprocess.CompletedProcess(typed, it.returncode, out, err)

    def close(self) -> None:
        self._give_up()

    @property
    def reported(self) -> str:
        return (self.folder / "told").read_text("utf-8")

    @property
    def report(self) -> dict[str, Any] | None:
        """What it was doing when it killed itself."""
        file = self.folder / "report.json"
        text = file.read_text() if file.exists() else ""  # empty: it is being written
        return json.loads(text) if text else None


def command(task: Path, folder: Path, *more: str) -> list[str]:
    arguments = ["train", str(task / "tiny.yaml"), *SETTINGS, *more, "--output", str(folder)]
    # Where there is no checkpoint yet, it starts from the beginning.
    return [*arguments, "--resume"]


def cache_in(folder: Path) -> Path:
    """An empty cache of one's own, for XDG_CACHE_HOME."""
    cache = folder / "cache"
    cache.mkdir(mode=0o700, parents=True)
    return cache


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first process of the tests to ask for it makes, and all others use.

    What it holds must not depend on who made it, and nobody may write into it."""
    import fcntl

    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / f"shared-{name}"
    with (root / f"shared-{name}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # let go of when the file is closed, or its process dies
        lock.seek(0)
        if lock.read() != "made":
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            lock.write("made")
    return folder


def log_of(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if k not in CLOCK} for record in records]


def check_same(folder: Path, whole: Path) -> None:
    """To the bit: weights, state, and every line of the log once and with the same numbers."""
    weights = [(run / "model.safetensors").read_bytes() for run in (folder, whole)]
    assert weights[0] == weights[1], "the same weights have other bytes"
    for name in ("model.safetensors", "state/training.safetensors"):
        mine, metadata = read_tensors(folder / name)
        theirs, their_metadata = read_tensors(whole / name)
        assert mine.keys() == theirs.keys()
        different = [key for key in mine if not mine[key].equal(theirs[key])]
        assert not different, f"{name}: {different[:3]}"
        for one in (metadata, their_metadata):
            standing = one.get("standing", {"window": {}})
            for clock in (standing, standing["window"]):
                for timed in ("seconds", "elapsed", "validation"):
                    clock.pop(timed, None)
        assert metadata == their_metadata
    log, steps = log_of(folder), log_of(whole)[-1]["step"]
    assert log == log_of(whole)
    assert [r["step"] for r in log if r["kind"] == "train"] == list(range(1, steps + 1))
    assert [r["step"] for r in log if r["kind"] == "valid"] == list(range(10, steps + 1, 10))
    names = [
        sorted(str(p.relative_to(run)) for p in run.rglob("*") if "tensorboard" not in str(p))
        for run in (folder, whole)
    ]
    assert names[0] == names[1], "something was left behind, or is missing"
