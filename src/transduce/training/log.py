"""The log of a run, which stays: log.jsonl, and the same for TensorBoard."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from transduce.errors import DataError, TrainingError
from transduce.storage import gone, how_to_mend, write_text

ThreadHook = Callable[[threading.ExceptHookArgs], object]


class Log:
    """Writes `log.jsonl` and `tensorboard/` into the folder of a run.

    What an earlier run logged after `resume_step` is dropped, and all of it where that is 0.
    `say`: is told why there is no TensorBoard, where there is none.
    """

    def __init__(self, folder: Path, resume_step: int, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.path = folder / "log.jsonl"
        self.resume_step = resume_step
        self._say = say
        self._file: IO[str] | None = None
        self._tensorboard: Any = None
        self._told_of_threads = threading.excepthook

    def open(self) -> list[dict[str, Any]]:
        """Begin, or go on with what an earlier run has logged: its records."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = _truncate(self.path, self.resume_step)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise TrainingError(_unwritten(self.path, error)) from None
        return kept

    def open_tensorboard(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter

            threading.excepthook = _unless_tensorboard(threading.excepthook)
            # purge_step hides what an earlier run wrote from there on.
            after = self.resume_step + 1 if self.resume_step else 0
            self._tensorboard = SummaryWriter(
                str(self.folder / "tensorboard"), purge_step=after, flush_secs=20
            )
        except ModuleNotFoundError:
            self._say(
                f"The log is {self.path}; for TensorBoard files beside it: "
                f"pip install 'transduce[tensorboard]'"
            )
        except Exception as error:
            self._without_tensorboard(error)

    def write(self, kind: str, record: Mapping[str, Any]) -> None:
        if self._file is None:
            raise RuntimeError("Progress writes only inside its `with` block.")
        plain = {key: _plain(value) for key, value in record.items()}
        try:
            self._file.write(json.dumps({"kind": kind, **plain}) + "\n")
            self._file.flush()
            if kind == "valid":  # a state follows, and must not outlive its log in a power cut
                os.fsync(self._file.fileno())
            # An open file takes lines also when nobody can find it any more.
            if not self.path.exists():
                raise TrainingError(f"{gone(self.folder)}: the run ends here")
        except OSError as error:
            raise TrainingError(_unwritten(self.path, error)) from None
        if self._tensorboard is None:
            return
        try:
            for key, value in plain.items():
                if key not in ("step", "best") and isinstance(value, (int, float)):
                    self._tensorboard.add_scalar(f"{kind}/{key}", value, plain["step"])
            if kind == "valid":
                self._tensorboard.flush()
        except Exception as error:
            self._without_tensorboard(error)

    def close(self) -> None:
        if self._tensorboard is not None:
            try:
                self._tensorboard.close()
            except Exception as error:
                self._without_tensorboard(error)
        if self._file is not None:
            with suppress(OSError):  # a line that could not be written has been told of
                self._file.close()
        self._tensorboard = self._file = None
        threading.excepthook = self._told_of_threads

    def _without_tensorboard(self, error: Exception) -> None:
        # Whatever broke in there, a missing package or a full disk: training is worth more.
        self._tensorboard = None
        self._say(f"TensorBoard logs are off: {error}")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log.jsonl; a last line that was cut off in writing is left out.

    Raises `DataError` where there is no log, or any other line is no JSON object.
    """
    if not Path(path).exists():
        raise DataError(f"There is no training log at {path}.")
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    records = []
    for number, line in enumerate(lines, start=1):
        record = _parsed(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            raise DataError(f"{path}, line {number}, is not a record of a training log.")
    return records


def _truncate(path: Path, step: int) -> list[dict[str, Any]]:
    """Leave in the log only what was logged up to a step, so that no step is in it twice."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records = [record for record in map(_parsed, lines) if record is not None]
    kept = [record for record in records if step > 0 and record.get("step", 0) <= step]
    write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
    return kept


def _unwritten(path: Path, error: OSError) -> str:
    return (
        f"{path} could not be written ({error.strerror or error}); the last saved state is "
        f"untouched: {how_to_mend(error)}, then go on with --resume"
    )


def _unless_tensorboard(tell: ThreadHook) -> ThreadHook:
    """TensorBoard's thread tells us what it died of when we next write; that is told once."""

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not type(arguments.thread).__module__.startswith("tensorboard."):
            tell(arguments)

    return hook


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    """A value as JSON has it: numbers of numpy or torch by their own value, None for nan."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
