"""What a line of the log is made of."""

from __future__ import annotations

import math

import torch

from transduce.training.window import Outcome, Window


def test_means_are_over_tokens_and_over_updates() -> None:
    seen = [Outcome(6.0, 1.0, 15), Outcome(4.0, 2.0, 5)]
    record = Window(seen, padding=0.5, seconds=2.0, batches=5, split=3, left_out=1).record()
    assert record == {
        "loss": 0.5,
        "gradient_norm": 1.5,
        "padding": 0.1,
        "tokens_per_second": 10.0,
        "skipped": 0,
        "split": 3,
        "left_out": 1,
    }


def test_skipped_updates_are_in_no_mean() -> None:
    bad = [Outcome(math.nan, 1.0, 100), Outcome(1.0, math.inf, 100)]
    record = Window([Outcome(6.0, 3.0, 12), *bad], seconds=1.0).record()
    assert (record["loss"], record["gradient_norm"]) == (0.5, 3.0)
    assert record["skipped"] == 2
    assert record["tokens_per_second"] == 212  # they were computed all the same


def test_a_window_without_a_number_has_no_mean() -> None:
    for window in (Window(), Window([Outcome(math.inf, math.inf, 5)], seconds=1.0)):
        record = window.record()
        assert math.isnan(record["loss"])
        assert math.isnan(record["gradient_norm"])


def test_a_look_takes_each_update_once() -> None:
    window = Window()
    window.add(torch.tensor(2.0), torch.tensor(1.0), 4)
    window.add(torch.tensor(math.nan), torch.tensor(1.0), 5)
    first = window.look()
    assert [outcome.usable for outcome in first] == [True, False]
    window.add(torch.tensor(3.0), torch.tensor(1.0), 6)
    assert window.look() == [Outcome(3.0, 1.0, 6)]
    assert [outcome.tokens for outcome in window.seen] == [4, 5, 6]
