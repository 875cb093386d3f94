"""The search, with trials that train nothing: what begins, goes on, is resumed and counted."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from optional import skip_without
from transduce.errors import CheckpointError, TrainingError
from transduce.tuning import search as module
from transduce.tuning.files import BEST, FIGURE, TABLE, VALUES, write_results
from transduce.tuning.results import results_of, rows
from transduce.tuning.rungs import Trial
from transduce.tuning.sample import importance, next_values
from transduce.tuning.search import Limits, Search
from transduce.tuning.segment import Outcome, Segment
from transduce.tuning.space import Range
from transduce.tuning.study import Study

skip_without("optuna")


def loss_at(lr: float, share: float) -> float:
    """The nearer to 0.01 the better, and the longer."""
    return abs(math.log10(lr / 0.01)) + 1 - share


@dataclass
class Trainer:
    """In place of processes: notes what is asked of it, and answers when it is told to."""

    fails: Callable[[Segment], str] = lambda segment: ""
    error: Exception | None = None
    holds: bool = False
    """Whether trials go on until they are stopped."""
    begun: list[tuple[int, float]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def __call__(self, segment: Segment) -> Pretended:
        self.begun.append((int(segment.folder.name), segment.share))
        return Pretended(self, segment)


@dataclass
class Pretended:
    trainer: Trainer
    segment: Segment
    stopped: bool = False

    def outcome(self) -> Outcome | None:
        if self.trainer.error is not None:
            raise self.trainer.error
        if self.stopped:
            return self._ended(Outcome("stopped", None, 1))
        if self.trainer.holds:
            return None
        if reason := self.trainer.fails(self.segment):
            return self._ended(Outcome("failed", reason=reason))
        share = self.segment.share
        loss = loss_at(self.segment.values["train.lr"], share)
        return self._ended(Outcome("finished" if share == 1 else "reached", loss, int(9 * share)))

    def _ended(self, outcome: Outcome) -> Outcome:
        self.trainer.ends.append(outcome.end)
        return outcome

    def stop(self) -> None:
        self.stopped = True

    def kill(self) -> None:
        raise AssertionError("it would have stopped")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.0)


def test_trials_are_halved_and_the_best_is_trained_in_full(study: Study) -> None:
    trainer = Trainer()
    Search(study, Limits(9, None), start=trainer).run()
    trials = study.trials()
    assert trials[0].values == {"train.lr": 0.01}  # the recipe itself
    assert [trial.number for trial in trials] == list(range(9))
    assert [share for _, share in trainer.begun].count(1 / 9) == 9
    assert len(trainer.begun) == len({*trainer.begun})  # nothing is trained twice
    found = results_of(study)
    assert found.best.number == 0
    assert found.best.finished
    by_loss = sorted(trials, key=lambda trial: trial.scores[0] or 0)
    assert [trial for trial in trials if trial.finished] == by_loss[:1]
    assert {trial.number for trial in by_loss[:3]} <= {
        n for n, share in trainer.begun if share > 0.2
    }
    # The same command again does nothing; with more trials it goes on.
    before = list(trainer.begun)
    Search(study, Limits(9, None), start=trainer).run()
    assert trainer.begun == before
    Search(study, Limits(10, None), start=trainer).run()
    assert len(study.trials()) == 10


def test_the_same_search_gives_the_same_trials(study: Study) -> None:
    seen: list[Trial] = []
    for number in range(9):
        values = next_values(study, seen)
        assert values == next_values(study, seen)
        assert study.space["train.lr"].holds(values["train.lr"])
        loss = loss_at(values["train.lr"], 1)
        seen.append(Trial(number, values, 2, [loss] * 3, [loss] * 3, finished=True, best=loss))
    assert len({trial.values["train.lr"] for trial in seen}) == 9


def test_the_sampler_keeps_away_from_what_failed(study: Study) -> None:
    """Every rate above 0.01 gives NaN: TPE must not go on to try them."""
    lower = upper = 0
    for offset in range(6):
        rates = [10 ** (-4 + 4 * (n + offset / 6) / 12) for n in range(12)]
        trials = [
            Trial(n, {"train.lr": rate}, failed="NaN")
            if rate > 0.01
            else Trial(n, {"train.lr": rate}, 0, [1.0 + n / 100], [1.0], best=1.0)
            for n, rate in enumerate(rates)
        ]
        below = next_values(study, trials)["train.lr"] <= 0.01
        lower, upper = lower + below, upper + (not below)
    assert lower > upper


def test_a_killed_search_goes_on_where_it_was(study: Study) -> None:
    for died in range(12):  # a kill after each of the first trials, while the next is trained
        trainer = Trainer(holds=True)
        victim = Search(study, Limits(5, None), start=trainer)
        with study.alone():
            taken = victim._take()
        assert taken is not None
        module.os.close(taken[1])  # the lock of a process that is gone
        survivor = Trainer()
        helper = Search(study, Limits(5, None), start=survivor)
        helper._fill()
        assert survivor.begun[0][0] == taken[0].number, "another trial was begun instead"
        helper._collect()
        if len(study.trials()) == 5 and died > 5:
            break
    Search(study, Limits(5, None), start=Trainer()).run()
    trials = study.trials()
    assert [trial.number for trial in trials] == list(range(5))
    assert sum(trial.finished for trial in trials) == 1
    assert all(len(trial.scores) == trial.rung + 1 for trial in trials)


def test_two_processes_share_a_search(study: Study) -> None:
    first, second = Trainer(holds=True), Trainer(holds=True)
    one = Search(study, Limits(4, None, jobs=2), start=first)
    two = Search(study, Limits(4, None), start=second)
    one._fill()
    two._fill()
    assert [number for number, _ in first.begun] == [0, 1]
    assert [number for number, _ in second.begun] == [2]
    assert not two._is_complete()
    first.holds = second.holds = False
    turns = 0
    while one.running or two.running or not one._is_complete():
        for search in (two, one):  # the second takes what is left, and waits for the first
            search._collect()
            search._fill()
        turns += 1
        assert turns < 20
    assert two._is_complete()
    begun = first.begun + second.begun
    assert len(begun) == len({*begun})
    assert len(study.trials()) == 4


def test_the_end_of_the_time_is_kept(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(module, "BEAT", 0.0)

    def tick() -> None:
        now[0] += 1.0

    trainer = Trainer(holds=True)
    search = Search(study, Limits(5, minutes=0.1, jobs=2), start=trainer)
    assert search.run(tick) == pytest.approx(6.0, abs=1.5)
    assert trainer.ends == ["stopped", "stopped"]
    assert [trial.on_its_way for trial in study.trials()] == [True, True]
    # The same command again: no time is left. With more, both go on, and no third begins.
    again = Trainer()
    Search(study, Limits(5, minutes=0.1), start=again).run(tick)
    assert again.begun == []
    more = Search(study, Limits(2, minutes=1.0), start=again)
    more.run(tick)
    assert [number for number, _ in again.begun[:2]] == [0, 1]
    assert len(study.trials()) == 2


def test_a_trial_that_fails_is_no_end(study: Study) -> None:
    def fails(segment: Segment) -> str:
        return "out of memory" if segment.values["train.lr"] > 0.1 else ""

    told: list[tuple[int, str]] = []
    search = Search(
        study,
        Limits(8, None),
        on_ended=lambda trial, outcome: told.append((trial.number, outcome.end)),
        start=Trainer(fails),
    )
    search.run()
    failed = [trial for trial in study.trials() if trial.failed]
    assert failed
    assert [(trial.number, "failed") in told for trial in failed] == [True] * len(failed)
    assert results_of(study).best.finished
    assert "failed" in [row[3] for row in rows(results_of(study))]


def test_all_trials_fail(study: Study) -> None:
    Search(study, Limits(3, None), start=Trainer(lambda segment: "the loss was NaN")).run()
    assert len(study.trials()) == 3
    with pytest.raises(TrainingError) as found:
        results_of(study)
    assert "all 3 trials failed, the last, trial 2, as the loss was NaN" in str(found.value)


def test_no_time_for_a_validation(study: Study) -> None:
    study.write(Trial(0, {"train.lr": 0.01}))
    with pytest.raises(TrainingError, match="no trial got as far as its first validation"):
        results_of(study)


def test_what_every_trial_would_meet_ends_the_search(study: Study) -> None:
    full = CheckpointError("state/training.safetensors could not be written (No space left)")
    with pytest.raises(CheckpointError, match="No space left"):
        Search(study, Limits(3, None, jobs=2), start=Trainer(error=full)).run()
    trials = study.trials()
    assert [trial.on_its_way for trial in trials] == [True, True]  # they go on later
    Search(study, Limits(3, None), start=Trainer()).run()
    assert sum(trial.finished for trial in study.trials()) == 1


def test_jobs_take_devices_in_turn(study: Study) -> None:
    devices: list[str | None] = []
    trainer = Trainer()

    def start(segment: Segment) -> Pretended:
        devices.append(segment.device)
        return trainer(segment)

    limits = Limits(3, None, jobs=3, devices=("cuda:0", "cuda:1"))
    Search(study, limits, start=start)._fill()
    assert devices == ["cuda:0", "cuda:1", "cuda:0"]


# -------------------------------------------------------------------------------------- results


@pytest.fixture
def scored(study: Study) -> Study:
    """Twelve trials: their rate matters, their dropout does not."""
    study.space["model.dropout"] = Range(0.0, 0.4)
    for number in range(12):
        values = {"train.lr": 10 ** (-4 + number / 3), "model.dropout": (number * 7 % 12) / 30}
        loss = loss_at(values["train.lr"], 1 / 9)
        study.write(Trial(number, values, 0, [loss], [loss], best=loss, updates=1))
    return study


def test_what_mattered(scored: Study) -> None:
    found = importance(scored, scored.trials())
    assert found["train.lr"] > 3 * found["model.dropout"]
    assert sum(found.values()) == pytest.approx(1.0)
    assert importance(scored, scored.trials()[:8]) == {}  # too few to say


def test_files_of_the_results(scored: Study) -> None:
    scored.write(Trial(12, {"train.lr": 1.0, "model.dropout": 0.0}, failed="NaN"))
    found = results_of(scored)
    write_results(found, 60.0, {})
    folder = scored.folder
    assert found.best.number == 6  # 10^-2
    table = [line.split("\t") for line in (folder / TABLE).read_text("utf-8").splitlines()]
    assert table[0][:4] == ["trial", "loss", "updates", "trained"]
    assert table[0][5:7] == ["train.lr", "model.dropout"]
    assert (table[1][0], table[1][3], table[-1][0], table[-1][-1]) == ("6", "1/9", "12", "NaN")
    values = json.loads((folder / VALUES).read_text("utf-8"))
    assert values["best"] == 6
    assert len(values["trials"]) == 13
    text = (folder / BEST).read_text("utf-8")
    assert text.startswith("# The best of 13 trials of `transduce tune`: trial 6")
    from transduce.recipe import load_recipe

    assert load_recipe(folder / BEST) == found.recipe
    assert load_recipe(folder / BEST).train.lr == 0.01
    drawn = (folder / FIGURE).read_text("utf-8")
    assert drawn.count("<!-- lr ") + drawn.count("<!-- dropout ") == 2


def test_the_best_is_compared_at_the_same_rung(scored: Study) -> None:
    own = {"train.lr": 0.01, "model.dropout": 0.1}
    scored.write(Trial(0, own, 0, [0.5], [0.5], best=0.5, updates=1))
    scored.write(Trial(1, {**own, "model.dropout": 0.2}, 1, [0.6, 0.4], [0.6, 0.4], best=0.4))
    found = results_of(scored)
    assert found.best.number == 1
    assert found.compared() == "Trained to 1/9, it has 0.6000, and the recipe itself 0.5000."


def test_the_table(scored: Study, tmp_path: Path) -> None:
    head, first, *_ = rows(results_of(scored))
    assert head == ["trial", "loss", "updates", "trained", "lr", "dropout"]
    assert first[:5] == ["6", "0.8889", "1", "1/9", "0.01"]
