"""The search: trials begin, go on and end, until there is nothing to do or no time left."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from transduce.errors import TransduceError
from transduce.tuning.rungs import Trial, next_promotion, rungs_of
from transduce.tuning.sample import next_values
from transduce.tuning.segment import Outcome, Segment, SegmentProcess, segment_of, so_far
from transduce.tuning.study import BEAT, Study, clean

POLL = 0.1  # seconds
GRACE = 20.0  # seconds that a trial has at the end to save a checkpoint


class Started(Protocol):
    """A segment that is being trained."""

    def outcome(self) -> Outcome | None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


Start = Callable[[Segment], Started]


@dataclass
class Running:
    trial: Trial
    segment: Segment
    started: Started
    claim: int
    """The lock on the trial."""
    slot: int


@dataclass(frozen=True)
class Limits:
    trials: int
    minutes: float | None
    jobs: int = 1
    devices: tuple[str, ...] = ()
    """On which jobs are trained in turn; empty: the recipe's."""


class Search:
    """One process of a search, and the trials that it has taken."""

    def __init__(
        self,
        study: Study,
        limits: Limits,
        on_ended: Callable[[Trial, Outcome], object] = lambda trial, outcome: None,
        start: Start | None = None,
    ) -> None:
        """on_ended: gets each trial whose segment has ended. start: begins the training of one;
        None: in a process of its own.
        """
        self.study, self.limits = study, limits
        self.rungs = rungs_of(study.recipe)
        self.running: list[Running] = []
        self._on_ended, self._start = on_ended, start or SegmentProcess
        self._seconds = 0.0

    @property
    def seconds_left(self) -> float | None:
        minutes = self.limits.minutes
        return None if minutes is None else max(60 * minutes - self._seconds, 0.0)

    def run(self, watch: Callable[[], object] = lambda: None) -> float:
        """Search until all is done or the time is over; then no trial of this process runs.

        Returns the seconds that the search has taken, by all its processes and commands.

        watch: called now and then. Raises TransduceError where every trial would fail;
        KeyboardInterrupt is for the caller. Either way, what runs is asked to stop and to save.
        """
        clean(self.study)
        self._seconds = self.study.begin()
        noted = time.monotonic()
        try:
            while self.seconds_left != 0.0:
                self._collect()
                self._fill()
                if not self.running and self._is_complete():
                    break
                if time.monotonic() - noted >= BEAT:
                    self._seconds, noted = self.study.beat(), time.monotonic()
                    watch()
                time.sleep(POLL)
        except BaseException:
            with suppress(TransduceError):  # of another trial, of the same cause
                self._stop()
            raise
        self._stop()
        self._seconds = self.study.beat()
        return self._seconds

    # -------------------------------------------------------------------------- take and begin

    def _fill(self) -> None:
        """Begin trials in all slots that are free."""
        used = {one.slot for one in self.running}
        for slot in [slot for slot in range(self.limits.jobs) if slot not in used]:
            with self.study.alone():
                taken = self._take()
            if taken is None:
                return
            trial, claim = taken
            share = self.rungs[trial.rung]
            segment = segment_of(self.study.recipe, trial.values, self.study.run(trial), share)
            if self.limits.devices:
                device = self.limits.devices[slot % len(self.limits.devices)]
                segment = replace(segment, device=device)
            self.running.append(Running(trial, segment, self._start(segment), claim, slot))

    def _take(self) -> tuple[Trial, int] | None:
        """The trial to train next, with its lock: one that was interrupted, one that goes on to its
        next rung, or a new one. Only while no other process takes one.
        """
        trials = self.study.trials()
        for trial in trials:
            if trial.on_its_way and (claim := self.study.claim(trial)) is not None:
                return trial, claim
        promoted = self._promoted(trials)
        if promoted is not None:
            trial = replace(promoted, rung=promoted.rung + 1)
        elif len(trials) < self.limits.trials:
            trial = Trial(len(trials), next_values(self.study, trials))
        else:
            return None
        claim = self.study.claim(trial)
        if claim is None:  # its last process has not ended yet
            return None
        self.study.write(trial)
        return trial, claim

    def _promoted(self, trials: Sequence[Trial]) -> Trial | None:
        more = len(trials) < self.limits.trials
        return next_promotion(trials, len(self.rungs), self.study.metric, more)

    def _is_complete(self) -> bool:
        """Whether there is nothing to do, nor will be when other processes have ended theirs."""
        trials = self.study.trials()
        begun = len(trials) >= self.limits.trials
        idle = not any(trial.on_its_way for trial in trials)
        return begun and idle and self._promoted(trials) is None

    # --------------------------------------------------------------------------------- the end

    def _collect(self) -> None:
        for one in list(self.running):
            try:
                outcome = one.started.outcome()
            except BaseException:
                self._release(one)
                raise
            if outcome is not None:
                self._note(one, outcome)

    def _release(self, one: Running) -> None:
        self.running.remove(one)
        os.close(one.claim)

    def _note(self, one: Running, outcome: Outcome) -> None:
        """Write what a segment brought, and give its trial free."""
        trial = replace(
            one.trial,
            best=outcome.best if outcome.best is not None else one.trial.best,
            updates=outcome.updates,
            seconds=round(outcome.seconds, 1),
            failed=outcome.reason if outcome.end == "failed" else "",
            finished=outcome.end == "finished",
        )
        if outcome.end == "reached":
            trial = _reached(trial, outcome, 1)
        elif outcome.end == "finished":  # perhaps by early stopping, before other rungs
            trial = _reached(trial, outcome, len(self.rungs) - len(trial.scores))
        try:
            self.study.write(trial)
        finally:
            self._release(one)
        self._on_ended(trial, outcome)

    def _stop(self) -> None:
        """Ask what runs to stop; what does not within the grace period is killed, and loses what it
        learnt since its last checkpoint.
        """
        for one in self.running:
            one.started.stop()
        until = time.monotonic() + GRACE
        try:
            while self.running and time.monotonic() < until:
                self._collect()
                time.sleep(POLL / 2)
        finally:
            for one in list(self.running):
                one.started.kill()
                self._note(one, so_far(one.segment, "stopped"))


def _reached(trial: Trial, outcome: Outcome, rungs: int) -> Trial:
    """The trial with the scores of so many rungs more."""
    scores = [*trial.scores, *[outcome.best] * rungs]
    return replace(trial, scores=scores, losses=[*trial.losses, *[outcome.loss] * rungs])
