"""What a line of the log is made of."""

from __future__ import annotations

import json
import math

import torch

from transduce.training.log_window import LogWindow, Outcome, UpdateResult


def passed(*numbers: float) -> UpdateResult:
    return UpdateResult(*map(torch.tensor, numbers))


def test_a_window_is_the_same_after_a_state_on_disk() -> None:
    window = LogWindow([Outcome(6.0, 1.0, 15, 5.0)])
    window.add(passed(2.0, 1.0, 1.5, 4))
    again = LogWindow.from_json(json.loads(json.dumps(window.to_json())))
    assert again.look() == window.look() == [Outcome(2.0, 1.0, 4, 1.5)]
    assert again.record() == window.record()


def test_means_are_over_tokens_and_over_updates() -> None:
    seen = [Outcome(8.0, 1.0, 15, 6.0), Outcome(4.0, 2.0, 5, 4.0)]
    record = LogWindow(seen, padding=0.5, seconds=2.0, batches=5, split=3, left_out=1).record()
    assert record == {
        "loss": 0.5,
        "objective": 0.6,
        "gradient_norm": 1.5,
        "padding": 0.1,
        "tokens_per_second": 10.0,
        "skipped": 0,
        "split": 3,
        "left_out": 1,
    }


def test_skipped_updates_are_in_no_mean() -> None:
    bad = [Outcome(math.nan, 1.0, 100, 9.0), Outcome(1.0, math.inf, 100, 9.0)]
    record = LogWindow([Outcome(9.0, 3.0, 12, 6.0), *bad], seconds=1.0).record()
    assert (record["loss"], record["objective"], record["gradient_norm"]) == (0.5, 0.75, 3.0)
    assert record["skipped"] == 2
    assert record["tokens_per_second"] == 212  # they were computed all the same


def test_a_window_without_a_number_has_no_mean() -> None:
    for window in (LogWindow(), LogWindow([Outcome(math.inf, math.inf, 5, 1.0)], seconds=1.0)):
        record = window.record()
        assert math.isnan(record["loss"])
        assert math.isnan(record["gradient_norm"])


def test_a_look_takes_each_update_once() -> None:
    window = LogWindow()
    window.add(passed(2.0, 1.0, 1.5, 4))
    window.add(passed(math.nan, 1.0, 1.5, 5))
    first = window.look()
    assert [outcome.usable for outcome in first] == [True, False]
    window.add(passed(3.0, 1.0, 2.5, 6))
    assert window.look() == [Outcome(3.0, 1.0, 6, 2.5)]
    assert [outcome.tokens for outcome in window.seen] == [4, 5, 6]


def test_an_objective_is_per_token_and_of_no_token_it_is_whole() -> None:
    assert Outcome(6.0, 1.0, 15, 5.0).objective_per_token == 0.4
    assert Outcome(6.0, 1.0, 0, 5.0).objective_per_token == 6.0
