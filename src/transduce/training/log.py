"""The training log: log.jsonl, and the same for TensorBoard, W&B and MLflow."""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Protocol

from transduce.errors import DataError, TrainingError, load_package
from transduce.recipe import Recipe
from transduce.storage import how_to_fix, missing_folder, write_json, write_text

ThreadHook = Callable[[threading.ExceptHookArgs], object]


class Log:
    """Writes `log.jsonl` and `tensorboard/` into the run directory.

    Records of an earlier run after `resume_step` are dropped; all of them if it is 0. `print_line`
    gets the reason if a tracker is off.
    """

    def __init__(self, folder: Path, resume_step: int, print_line: Callable[[str], None]) -> None:
        self.folder = folder
        self.path = folder / "log.jsonl"
        self.resume_step = resume_step
        self._print_line = print_line
        self._file: IO[str] | None = None
        self._trackers: dict[str, Tracker] = {}
        self._thread_hook = threading.excepthook

    def open(self) -> list[dict[str, Any]]:
        """Create the log, or continue an earlier one: its records."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            kept = _truncate(self.path, self.resume_step)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise TrainingError(_unwritten(self.path, error)) from None
        return kept

    def open_trackers(self, makers: Mapping[str, Callable[[], Tracker]]) -> None:
        """TensorBoard, and those that the makers open."""

        def tensorboard() -> Tracker:
            return TensorBoardTracker(self.folder / "tensorboard", self.resume_step)

        for name, make in {"TensorBoard": tensorboard, **makers}.items():
            try:
                self._trackers[name] = make()
            except Exception as error:
                self._print_line(f"{name} logs are off: {_in_a_line(error)}")

    def write(self, kind: str, record: Mapping[str, Any]) -> None:
        if self._file is None:
            raise RuntimeError("Progress writes only inside its `with` block.")
        plain = {key: _plain(value) for key, value in record.items()}
        try:
            self._file.write(json.dumps({"kind": kind, **plain}) + "\n")
            self._file.flush()
            if kind == "valid":  # a checkpoint follows, and the log must be on disk before it
                os.fsync(self._file.fileno())
            # An open file accepts lines even after it was deleted.
            if not self.path.exists():
                raise TrainingError(f"{missing_folder(self.folder)}: training stops")
        except OSError as error:
            raise TrainingError(_unwritten(self.path, error)) from None
        numbers = {
            f"{kind}/{key}": value
            for key, value in plain.items()
            if key not in ("step", "best") and isinstance(value, (int, float))
        }
        for name, tracker in list(self._trackers.items()):
            try:
                tracker.write(numbers, plain.get("step", 0))
            except Exception as error:  # a network that is gone, a full disk: training goes on
                del self._trackers[name]
                self._print_line(f"{name} logs are off: {_in_a_line(error)}")

    def close(self) -> None:
        for name, tracker in self._trackers.items():
            try:
                tracker.close()
            except Exception as error:
                self._print_line(f"{name} logs are incomplete: {_in_a_line(error)}")
        self._trackers = {}
        if self._file is not None:
            with suppress(OSError):  # the error was reported already
                self._file.close()
        self._file = None
        threading.excepthook = self._thread_hook  # the trackers have threads, and their own hooks


def read_log(path: Path) -> list[dict[str, Any]]:
    """The records of a log.jsonl; an incomplete last line is left out.

    Raises `DataError` if there is no log, or another line is not a JSON object.
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
    """Drop the records after a step, so that no step is in the log twice."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    records = [record for record in map(_parsed, lines) if record is not None]
    kept = [record for record in records if step > 0 and record.get("step", 0) <= step]
    write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
    return kept


def _unwritten(path: Path, error: OSError) -> str:
    return (
        f"{path} could not be written ({error.strerror or error}); the last checkpoint is "
        f"intact: {how_to_fix(error)}, then continue with --resume"
    )


def _in_a_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    """A value as JSON: numpy and torch numbers as Python numbers, None for NaN."""
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ----------------------------------------------------------------------------------------------
# Trackers: the records of log.jsonl go to TensorBoard's files and, where `train.log_to` says so, to
# Weights & Biases and MLflow.
#
# Where the latter are is said by their own settings: WANDB_MODE=offline, WANDB_PROJECT,
# MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME and so on. A resumed run goes on in the same place.

PROJECT = "transduce"  # of W&B, and the experiment of MLflow, where none is set
IDS = Path("state") / "trackers.json"  # the identity of the run in each, to resume it


class Tracker(Protocol):
    """Takes the numbers of a run."""

    def write(self, values: Mapping[str, float], step: int) -> None: ...

    def close(self) -> None: ...


class TensorBoardTracker:
    def __init__(self, folder: Path, resume_step: int) -> None:
        if folder.is_symlink():
            raise OSError(f"{folder} is a symbolic link, and nothing is written through it")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise TrainingError(
                f"for them, pip install '.[tensorboard]'; {folder.with_name('log.jsonl')} has the "
                f"same records"
            ) from None
        threading.excepthook = _unless_tensorboard(threading.excepthook)
        # purge_step hides what an earlier run wrote after that step.
        after = resume_step + 1 if resume_step else 0
        self.writer: Any = SummaryWriter(str(folder), purge_step=after, flush_secs=20)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self.writer.add_scalar(key, value, step)
        if any(key.startswith("valid/") for key in values):  # a checkpoint follows
            self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def _unless_tensorboard(hook_before: ThreadHook) -> ThreadHook:
    """Hide exceptions of TensorBoard's thread, which are reported when we next write."""

    def hook(arguments: threading.ExceptHookArgs) -> None:
        if not type(arguments.thread).__module__.startswith("tensorboard."):
            hook_before(arguments)

    return hook


class WandbTracker:
    def __init__(self, recipe: Recipe, folder: Path, resume: bool) -> None:
        known = _ids(folder).get("wandb") if resume else None
        self.run = load_package("wandb", "wandb").init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=recipe.name,
            dir=str(folder),
            id=known,
            resume="allow" if known else None,
            config=recipe.model_dump(mode="json"),
        )
        _keep(folder, "wandb", str(self.run.id))

    def write(self, values: Mapping[str, float], step: int) -> None:
        self.run.log(dict(values), step=step)

    def close(self) -> None:
        self.run.finish()


class MlflowTracker:
    """By MLflow's client, which has no global run."""

    def __init__(self, recipe: Recipe, folder: Path, resume: bool) -> None:
        self.client = load_package("mlflow", "mlflow").MlflowClient()
        known = _ids(folder).get("mlflow") if resume else None
        if known is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self.client.get_experiment_by_name(name)
            experiment = self.client.create_experiment(name) if found is None else None
            place = found.experiment_id if experiment is None else experiment
            known = self.client.create_run(place, run_name=recipe.name).info.run_id
            for key, value in _flat(recipe.model_dump(mode="json")).items():
                self.client.log_param(known, key, str(value)[:500])
        self.id = str(known)
        _keep(folder, "mlflow", self.id)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for key, value in values.items():
            self.client.log_metric(self.id, key, value, step=step)

    def close(self) -> None:
        self.client.set_terminated(self.id)


TRACKERS: dict[str, type[WandbTracker | MlflowTracker]] = {
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def check_packages(names: Sequence[str]) -> None:
    """Raise ModelError where the package of a tracker is not installed."""
    for name in names:
        load_package(name, name)


def tracker_makers(
    recipe: Recipe, folder: Path, resume: bool
) -> dict[str, Callable[[], WandbTracker | MlflowTracker]]:
    """For each tracker that the recipe asks for, what opens it."""

    def maker(name: str) -> Callable[[], WandbTracker | MlflowTracker]:
        return lambda: TRACKERS[name](recipe, folder, resume)

    return {name: maker(name) for name in recipe.train.log_to}


def _ids(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / IDS).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _keep(folder: Path, name: str, identity: str) -> None:
    write_json(folder / IDS, {**_ids(folder), name: identity})


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        dotted = f"{prefix}{key}"
        found |= _flat(value, f"{dotted}.") if isinstance(value, dict) else {dotted: value}
    return found
