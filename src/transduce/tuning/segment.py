"""One segment of a trial: its training up to a rung, in a process of its own.

A process that runs out of memory, or is killed, takes no other trial with it; and what it leaves is
a run directory, from which the next segment resumes exactly.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from transduce import errors
from transduce.errors import DivergedError, ModelError, RecipeError, TransduceError
from transduce.recipe import Recipe, dump_recipe, parse_recipe
from transduce.storage import read_tensor_metadata
from transduce.training.log import read_log
from transduce.training.run_directory.checkpoint import STATE, TrainingState
from transduce.tuning.space import with_values

OUTPUT = "output.txt"
"""In the run directory: what training has printed."""
# What other trials would meet too is no failure of this one, but ends the search.
FAILURES = (DivergedError, RecipeError, MemoryError)


@dataclass(frozen=True)
class Segment:
    """What is to be trained: a trial of a recipe, in its run directory, up to a share of it."""

    recipe: str
    """As YAML, without the values of the trial."""
    values: Mapping[str, Any]
    folder: Path
    share: float
    """1: to the end."""
    device: str | None = None
    """Another than the recipe's."""


@dataclass(frozen=True)
class Outcome:
    """How a segment ended."""

    end: str
    """reached (its rung), finished (the training), stopped (before either) or failed."""
    best: float | None = None
    updates: int = 0
    seconds: float = 0.0
    reason: str = ""
    """Of a failure."""
    loss: float | None = None
    """The lowest on the validation set."""


def share_of(recipe: Recipe, step: int, epoch: int, elapsed: float) -> float:
    """How much of its training a run has behind it: by updates, epochs or time."""
    train = recipe.train
    shares = [step / train.steps]
    shares += [] if train.epochs is None else [epoch / train.epochs]
    shares += [] if train.minutes is None else [elapsed / (60 * train.minutes)]
    return max(shares)


def is_reached(recipe: Recipe, share: float, step: int, epoch: int, elapsed: float) -> bool:
    """Whether a run has come so far: at a validation of its own, so that it is the same training;
    but when its time has come, wherever it is: a slow one may be far from a validation.
    """
    minutes = recipe.train.minutes
    if minutes is not None and elapsed >= share * 60 * minutes:
        return True
    validated = step % recipe.validation.every == 0
    return validated and share_of(recipe, step, epoch, elapsed) >= share


def train_segment(segment: Segment) -> Outcome:
    """Train, in this process. Raises TransduceError where other trials would fail too."""
    from transduce.training.train import train_recipe

    reached = False
    try:
        base = parse_recipe(segment.recipe, "the recipe", Path.cwd(), run_plugins=True)
        recipe = with_values(base, segment.values)
        if segment.device is not None:
            recipe = with_values(recipe, {"train.device": segment.device})

        def pause(state: TrainingState) -> bool:
            if not _parent_lives():
                signal.raise_signal(signal.SIGTERM)
            at = (state.step, state.position.epoch, state.elapsed)
            nonlocal reached
            reached = segment.share < 1 and is_reached(recipe, segment.share, *at)
            return reached

        # A search that was killed may have trained this segment without noting it.
        before = saved_state(segment.folder)
        if before and segment.share < 1:
            at = (before["step"], before["position"]["epoch"], before.get("elapsed", 0.0))
            validated = before["step"] % recipe.validation.every == 0
            if validated and is_reached(recipe, segment.share, *at):
                loss = lowest_loss(segment.folder)
                return Outcome("reached", before["best"], before["step"], at[2], loss=loss)
        trained = train_recipe(recipe, segment.folder, resume=True, pause=pause)
    except FAILURES as error:
        return _failed(segment, str(error) or "there is not enough memory")
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        return _failed(segment, "out of memory on the device")
    state = trained.state
    end = "finished"
    if trained.interrupted:
        end = "reached" if reached else "stopped"
    best = state.best if state.best is not None and math.isfinite(state.best) else None
    return Outcome(end, best, state.step, state.elapsed, loss=lowest_loss(segment.folder))


def lowest_loss(folder: Path) -> float | None:
    """The lowest validation loss in the log of a run."""
    records = [record for record in read_log(folder / "log.jsonl") if record["kind"] == "valid"]
    return min((record["loss"] for record in records if record["loss"] is not None), default=None)


def saved_state(folder: Path) -> dict[str, Any]:
    """The state in the checkpoint of a run; empty where there is none."""
    found = read_tensor_metadata(folder / STATE).get("standing")
    return found if isinstance(found, dict) else {}


def _failed(segment: Segment, reason: str) -> Outcome:
    return so_far(segment, "failed", reason)


def so_far(segment: Segment, end: str, reason: str = "") -> Outcome:
    """An outcome with what the checkpoint says of the training until now."""
    before = saved_state(segment.folder)
    return Outcome(
        end,
        before.get("best"),
        int(before.get("step", 0)),
        float(before.get("elapsed", 0.0)),
        " ".join(reason.split()),
    )


def _is_out_of_memory(error: RuntimeError) -> bool:
    return "memory" in str(error) and "alloc" in str(error)


def _parent_lives() -> bool:
    parent = multiprocessing.parent_process()
    return parent is None or parent.is_alive()


# ------------------------------------------------------------------------ in a process of its own


class SegmentProcess:
    """A segment that is trained by another process."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        # A fork of a clean server: torch is imported once, and no thread or CUDA context of this
        # process comes along.
        way = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(way)
        if way == "forkserver":
            context.set_forkserver_preload(["transduce.training.train"])
        self._connection, other = context.Pipe(duplex=False)
        self._process = context.Process(target=_work, args=(segment, other), daemon=True)
        self._process.start()
        other.close()

    def outcome(self) -> Outcome | None:
        """How it ended; None: it has not. Raises TransduceError where the search must end."""
        sent = None
        with suppress(EOFError, OSError):
            if self._connection.poll():
                sent = self._connection.recv()
        if sent is None and self._process.exitcode is None:
            return None
        self._process.join()
        if isinstance(sent, Outcome):
            return sent
        if sent is not None:
            name, sentence = sent
            raise getattr(errors, name, ModelError)(sentence)
        code = self._process.exitcode
        if code == -signal.SIGTERM:  # asked to stop before it could train
            return so_far(self.segment, "stopped")
        if code is not None and code < 0:
            return so_far(
                self.segment,
                "failed",
                f"its process was ended by {signal.Signals(-code).name}; often there was not "
                f"enough memory",
            )
        raise ModelError(
            f"a trial ended with status {code}; what it said is in {self.segment.folder / OUTPUT}"
        )

    def stop(self) -> None:
        """Ask it to end, with a checkpoint."""
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _work(segment: Segment, connection: Connection) -> None:
    """The main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which asks to stop
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    segment.folder.mkdir(parents=True, exist_ok=True)
    file = os.open(segment.folder / OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())
    try:
        sent: Outcome | tuple[str, str] = train_segment(segment)
    except TransduceError as error:
        sent = (type(error).__name__, str(error))
    with suppress(OSError):  # the parent is gone: the checkpoint says all
        connection.send(sent)
    connection.close()


def segment_of(recipe: Recipe, values: Mapping[str, Any], folder: Path, share: float) -> Segment:
    return Segment(dump_recipe(recipe), dict(values), folder, share)
