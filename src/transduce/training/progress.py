"""Progress bar and log lines of a run on the terminal."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from transduce.terminal import console as make_console
from transduce.terminal import duration
from transduce.training.log import Log, Tracker

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

REFRESHES = 4  # refreshes of the bar in a second
EARLY = (1, 5, 20)  # updates with a line where there is no bar, before the first of the log
BAR = 12  # characters of the bar, if the terminal is wide enough
ENDS_EARLIER = 0.9  # with less of the time for all updates, their number is estimated


@dataclass(slots=True)
class StepRecord:
    """One update. Without a loss, which would synchronise with the device, the last one stays
    shown.

    `seconds`: how long the run has trained so far.
    """

    step: int
    tokens: int
    lr: float
    loss: float | None = None
    seconds: float = 0.0


def console(terminal: bool | None = None) -> Console:
    """The console of a run: stderr, without markup or line wrapping."""
    return make_console(
        stderr=True, force_terminal=terminal, markup=False, highlight=False, soft_wrap=True
    )


class Progress:
    """Shows a run on the terminal and writes its `log.jsonl` and `tensorboard/`; used with `with`.

    `terminal`: a progress bar, or plain lines; None asks rich whether stderr is a terminal.

    `metric`: the validation metric that the bar shows; None: the first that is not the loss.

    `minutes`: the time limit of the run. `log_every`: updates between two lines of the log.

    `trackers`: what opens others that get the log, by name.

    Records of an earlier run after `resume_step` are dropped; all of them if it is 0.
    """

    def __init__(
        self,
        folder: Path,
        total_steps: int,
        resume_step: int = 0,
        terminal: bool | None = None,
        metric: str | None = None,
        minutes: float | None = None,
        log_every: int = 1,
        trackers: Mapping[str, Callable[[], Tracker]] | None = None,
    ) -> None:
        self._trackers = trackers or {}
        self.total_steps = total_steps
        self.metric = metric
        self.max_seconds = None if minutes is None else 60 * minutes
        self.pace = TrainingSpeed()
        self._first = resume_step
        self._first_line = resume_step + log_every - resume_step % log_every
        self._wants_terminal = terminal
        self._latest = StepRecord(resume_step, 0, math.nan)
        self._loss: float | None = None
        self._objective: float | None = None
        self._valid: dict[str, Any] | None = None
        self._best: dict[str, Any] | None = None
        self._console: Console | None = None
        self._live: Live | None = None
        self._log = Log(Path(folder), resume_step, self.print_line)

    def __enter__(self) -> Self:
        for record in self._log.open():
            if record.get("kind") == "valid":
                self._valid = record
                if record.get("best"):
                    self._best = record
            else:
                self._loss = record.get("loss", self._loss)
                self._objective = record.get("objective")
        self._open_terminal()
        self._log.open_trackers(self._trackers)
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with suppress(OSError):  # the terminal is gone
                self._live.stop()
        self._log.close()
        self._live = None

    def step(self, record: StepRecord) -> None:
        """Record an update. Nothing is drawn here: the bar refreshes by itself."""
        self.pace.step(record.step, record.tokens)
        self._latest = record
        if record.loss is not None:
            self._loss = record.loss
        done = record.step - self._first
        if self._live is None and done in EARLY and record.step < self._first_line:
            self.print_line("  ".join(self._parts(record.step, record.lr, None).values()))

    def log(self, record: Mapping[str, Any]) -> None:
        """Log the updates since the last line; docs/guides/training.md has the fields."""
        self._log.write("train", record)
        self._loss = record.get("loss", self._loss)
        self._objective = record.get("objective")
        if self._live is None:
            parts = self._parts(
                int(record["step"]), record.get("lr"), record.get("tokens_per_second")
            )
            self.print_line("  ".join(parts.values()))

    def started(self, metadata: Mapping[str, Any]) -> None:
        """Log the model that training starts from."""
        self._log.write("start", {"step": 0, **metadata})

    def validation(self, step: int, values: Mapping[str, float], best: bool) -> None:
        """Log a validation. The time since the last update does not count as training time."""
        self.pace.pause()
        self._valid = {"step": step, **values}
        if best:
            self._best = self._valid
        self._log.write("valid", {"step": step, **values, "best": best})
        shown = "  ".join(_value(name, value) for name, value in values.items())
        of = self._step_of_all(step)
        self.print_line(f"step {of}  valid  {shown}{'  best' if best else ''}")

    def print_line(self, sentence: str) -> None:
        """Print a line, above the bar where there is one."""
        with suppress(OSError):  # the terminal is gone: that must not stop a run
            if self._live is not None and self._console is not None:
                self._console.print(sentence)
            else:
                print(sentence, file=sys.stderr, flush=True)

    # -------------------------------------------------------------------------------- terminal

    def _open_terminal(self) -> None:
        if self._wants_terminal is False:
            return
        from rich.live import Live

        screen = console(self._wants_terminal)
        if not screen.is_terminal or screen.is_dumb_terminal:
            return
        self._console = screen
        self._live = Live(
            get_renderable=lambda: self._bar(screen.width),
            console=screen,
            refresh_per_second=REFRESHES,
            redirect_stdout=sys.stdout.isatty(),  # a file or a pipe keeps what is printed to it
        )
        self._live.start()

    def _bar(self, width: int) -> Text:
        """The line of the bar: the most important parts first, as many as the width holds."""
        from rich.text import Text

        latest = self._latest
        parts = self._parts(latest.step, latest.lr, None)
        share = latest.step / self.total_steps if self.total_steps else 1.0
        if self.max_seconds is not None:
            share = max(share, latest.seconds / self.max_seconds)
        share = min(share, 1.0)
        parts = {"share": f"{100 * share:3.0f} %"} | parts
        parts["step"] = self._step_of_all(latest.step)
        if self._valid is not None:
            name = self._shown()
            parts["valid"] = "valid " + _value(name, self._valid.get(name))
            if self._best is not None:
                parts["best"] = "best " + _value(name, self._best.get(name)).split()[-1]

        cell = "-" if self._console is not None and self._console.options.ascii_only else "━"
        filled = round(share * BAR)
        capacity = width - 1
        chosen = set()
        for key in ("share", "step", "loss", "left", "valid", "best", "speed", "bar", "lr"):
            need = (BAR if key == "bar" else len(parts.get(key, ""))) + 2
            if (key in parts or key == "bar") and need <= capacity:
                chosen.add(key)
                capacity -= need
        line = Text(no_wrap=True, overflow="crop", end="")
        for key in ("share", "bar", "step", "loss", "speed", "lr", "left", "valid", "best"):
            if key not in chosen:
                continue
            if line:
                line.append("  ")
            if key == "bar":
                line.append(cell * filled, "magenta")
                line.append(cell * (BAR - filled), "bright_black")
            else:
                line.append(parts[key], "bold" if key in ("share", "loss") else "")
        return line

    def _parts(self, step: int, lr: float | None, speed: float | None) -> dict[str, str]:
        parts = {"step": f"step {self._step_of_all(step)}"}
        if self._loss is not None:
            parts["loss"] = _value("loss", self._loss)
        if self._objective is not None and self._objective != self._loss:
            parts["objective"] = _value("objective", self._objective)
        speed = self.pace.tokens_per_second if speed is None else speed
        if speed is not None:
            parts["speed"] = f"{speed:,.0f} tok/s"
        if lr is not None and math.isfinite(lr):
            parts["lr"] = f"lr {lr:.1e}"
        seconds, by_clock = self._seconds_left(step)
        seconds = by_clock if seconds is None else min(seconds, by_clock)
        if math.isfinite(seconds):
            parts["left"] = f"{duration(seconds)} left"
        return parts

    def _seconds_left(self, step: int) -> tuple[float | None, float]:
        """For all updates, where the speed is known, and by the clock (infinity without one)."""
        by_clock = math.inf
        if self.max_seconds is not None:
            by_clock = max(self.max_seconds - self._latest.seconds, 0.0)
        return self.pace.seconds_left(self.total_steps - step), by_clock

    def _step_of_all(self, step: int) -> str:
        """12/600, or 12/~80 where the time ends the training earlier; 1 where that is not known."""
        seconds, by_clock = self._seconds_left(step)
        if seconds is None and self.max_seconds is not None and step < self.total_steps:
            return str(step)  # how many the time is enough for is not known yet
        if seconds is None or by_clock >= ENDS_EARLIER * seconds:
            return f"{step}/{self.total_steps}"
        expected = step + (self.total_steps - step) * by_clock / seconds
        return f"{step}/~{max(float(f'{expected:.2g}'), step):.0f}"

    def _shown(self) -> str:
        values = [name for name in self._valid or {} if name not in ("kind", "step", "best")]
        if self.metric in values:
            return str(self.metric)
        return next((name for name in values if name != "loss"), "loss")


class NoProgress(Progress):
    """Progress of all ranks but the first: shows and writes nothing."""

    def __enter__(self) -> Self:
        return self

    def step(self, record: StepRecord) -> None:
        pass

    def log(self, record: Mapping[str, Any]) -> None:
        pass

    def started(self, metadata: Mapping[str, Any]) -> None:
        pass

    def validation(self, step: int, values: Mapping[str, float], best: bool) -> None:
        pass

    def print_line(self, sentence: str) -> None:
        pass


def _value(name: str, value: float | None) -> str:
    if value is None:
        return f"{name} ?"
    return f"{name} {value:.3f}" if name in ("loss", "objective") else f"{name} {value:.2f}"


# ----------------------------------------------------------------------------------------------
# Training speed: tokens per second, and the estimated time left.

DECAY = 0.98  # decay of the moving averages: about the last fifty updates count


class TrainingSpeed:
    """Training speed: moving averages of seconds and tokens of an update."""

    def __init__(self) -> None:
        self._seconds = self._tokens = self._weight = 0.0
        self._last: tuple[int, float] | None = None

    def step(self, step: int, tokens: int) -> None:
        now = time.perf_counter()
        # The first update, and the first after a pause, only start the clock: compiling kernels or
        # decoding a validation set says nothing about the updates to come.
        if self._last is not None and step > self._last[0]:
            updates, seconds = step - self._last[0], now - self._last[1]
            self._seconds = DECAY * self._seconds + (1 - DECAY) * seconds / updates
            self._tokens = DECAY * self._tokens + (1 - DECAY) * tokens
            self._weight = DECAY * self._weight + (1 - DECAY)
        self._last = step, now

    def pause(self) -> None:
        """Do not count the time until the next update as training."""
        self._last = None

    @property
    def tokens_per_second(self) -> float | None:
        return self._tokens / self._seconds if self._seconds else None

    def seconds_left(self, updates: int) -> float | None:
        """Estimated seconds for so many updates; None before the first measurement."""
        return max(updates, 0) * self._seconds / self._weight if self._weight else None
