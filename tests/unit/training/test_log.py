"""The log: what is written into the folder of a run, read back as a user would."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from transduce.errors import DataError, TrainingError
from transduce.training.log import read_log
from transduce.training.progress import Progress


def record(step: int, **others: Any) -> dict[str, Any]:
    return {"step": step, "loss": 2.0 / step, "lr": 3e-4, "tokens_per_second": 12300.4, **others}


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


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


def test_tensorboard_is_not_written_through_a_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / "tensorboard").symlink_to(elsewhere)
    with Progress(run, 10, terminal=False) as progress:
        progress.log(record(1))
    assert "is a symbolic link" in capsys.readouterr().err
    assert list(elsewhere.iterdir()) == []


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
    reported = capsys.readouterr().err
    if cause == "folder":
        assert reported.count("TensorBoard logs are off") == 1
    else:
        assert reported.count("pip install '.[tensorboard]'") == 1
        assert str(tmp_path / "log.jsonl") in reported
        assert "warning" not in reported
    assert len(read_log(tmp_path / "log.jsonl")) == 2


def test_a_disk_that_is_full_for_tensorboard_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    def full(writer: RecordWriter, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    reported: list[threading.ExceptHookArgs] = []
    hook = reported.append
    monkeypatch.setattr(threading, "excepthook", hook)
    monkeypatch.setattr(RecordWriter, "write", full)
    with Progress(tmp_path, 10, terminal=False) as progress:
        progress.validation(1, {"loss": 1.0}, best=True)
        stranger = threading.Thread(target=lambda: 1 / 0)
        stranger.start()
        stranger.join()
    said = capsys.readouterr().err
    assert said.count("TensorBoard logs are off: [Errno 28] No space left on device") == 1
    assert [arguments.exc_type for arguments in reported] == [ZeroDivisionError]
    assert threading.excepthook is hook


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("not a folder")
    with pytest.raises(TrainingError, match="could not be written"), Progress(tmp_path / "run", 10):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """Closing the log writes once more what could not be written: that error must not win."""

    def run() -> None:
        with (
            Progress(tmp_path, 10, terminal=False) as progress,
            Path("/dev/full").open("a") as full,
        ):
            assert progress._log._file is not None
            os.dup2(full.fileno(), progress._log._file.fileno())
            progress.log(record(1))

    with pytest.raises(TrainingError, match=r"log\.jsonl could not be written \(No space left"):
        run()
