"""What is said when something goes wrong names the pairs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from transduce.data.batches.batch import collate
from transduce.errors import TrainingError
from transduce.recipe import Columns, Named, ParallelFiles, Train, parse_recipe
from transduce.recipe.training import Decode
from transduce.training.log_window import LogWindow, Outcome
from transduce.training.run_directory.checkpoint import TrainingState
from transduce.training.warnings import TrainingMonitor, changes, place

RECIPE = "data: {train: {name: copy, split: train}, valid: {name: copy, split: valid}}"


def watch(folder: Path) -> TrainingMonitor:
    return TrainingMonitor(parse_recipe(RECIPE, "test", folder), folder)


def test_lines_and_files_in_words() -> None:
    assert place(Columns(file="a.tsv"), [7]) == "line 7 of a.tsv"
    assert place(Columns(file=["a.tsv", "b.tsv"]), [9, 7]) == "lines 7, 9 of a.tsv, b.tsv"
    assert place(ParallelFiles(source="a.en", target="a.de"), [3]) == "line 3 of a.en and a.de"
    assert place(Named(name="copy", split="train"), [3]) == "line 3 of copy (train)"
    many = place(Columns(file="a.tsv"), list(range(13, 0, -1)))
    assert many == "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more of a.tsv"


def test_a_stream_of_an_earlier_version_is_said_to_have_another_order() -> None:
    def said(before: str, now: str) -> list[str]:
        return changes(Train(), (before, now), ("", ""))

    (sentence,) = said("", "9 streamed rows")
    assert "read streams in another order: it goes on at the same place of the epoch" in sentence
    assert said("9 streamed rows", "9 streamed rows") == []
    assert said("", "9 pairs with 20 target tokens") == []
    (sentence,) = said("9 streamed rows", "8 streamed rows")
    assert "had 9 streamed rows when this run was stopped and has 8 streamed rows now" in sentence


def test_the_worst_update_is_the_one_of_highest_loss_per_token(tmp_path: Path) -> None:
    one = watch(tmp_path)
    for step in (8, 9, 10):
        one.note(step, [collate([[5]], [[6]], [100 * step])])
    seen = [
        Outcome(50.0, 1.0, 50, 9.0),
        Outcome(40.0, 1.0, 10, 1.0),
        Outcome(math.inf, 1.0, 10, 9.0),
    ]
    state = TrainingState(step=10, window=LogWindow(seen))
    record = {"skipped": 0, "spike": True, "objective": 1.5}
    (reported,) = one.warnings(state, record)
    assert "update 9 with 4 (line 900 of copy (train))" in reported
    assert not one.lines
    assert not list(one.warnings(state, {"skipped": 0, "spike": False, "loss": 1.0}))


def test_a_batch_is_reported_once_and_each_pair_once(tmp_path: Path) -> None:
    one = watch(tmp_path)
    batch = collate([[5, 6], [7]], [[8], [9, 9, 9]], [21, 22])
    first = list(one.out_of_memory([batch], [batch.part(slice(0, 1))]))
    assert len(first) == 2
    assert "2 x 3 source and 4 target tokens" in first[0]
    assert "line 21 of copy (train)" in first[1]
    again = list(one.out_of_memory([batch], [batch.part(slice(0, 1)), batch.part(slice(1, 2))]))
    assert [sentence.partition(" does")[0] for sentence in again] == [
        "warning: line 22 of copy (train)"
    ]


def test_attention_that_does_not_follow_is_reported_once_the_rate_has_risen(tmp_path: Path) -> None:
    one = watch(tmp_path)  # whose rate rises over 1,000 updates
    lost = {"loss": 2.0, "diagonal": 5.2}
    (reported,) = one.attention_warnings(TrainingState(step=1000), lost)
    assert "(diagonal 5, of at most 100)" in reported
    assert "train.lr=0.0005" in reported
    assert "train.guided_attention=1," in reported
    (again,) = one.attention_warnings(TrainingState(step=1000), lost)
    assert "still does not move" in again
    assert "try" not in again
    assert not list(one.attention_warnings(TrainingState(step=999), lost))
    assert not list(
        one.attention_warnings(TrainingState(step=2000), {"loss": 2.0, "diagonal": 50.0})
    )
    assert not list(one.attention_warnings(TrainingState(step=2000), {"loss": 2.0, "alarms": 5.0}))
    (reported,) = one.attention_warnings(TrainingState(step=2000), {"loss": 2.0, "alarms": 25.4})
    assert "25 % of the transcripts have a warning" in reported
    recipe = one.recipe.model_copy(update={"decode": Decode(ctc_weight=1.0)})
    by_ctc = TrainingMonitor(recipe, tmp_path)
    assert not list(by_ctc.attention_warnings(TrainingState(step=1000), lost))
    assert f"transduce run {tmp_path} FILE" in reported


def test_a_run_that_never_had_a_number_says_so(tmp_path: Path) -> None:
    window = LogWindow(waiting=[[math.nan, math.nan, math.nan, 5]] * 10)
    state = TrainingState(step=10, window=window)
    with pytest.raises(TrainingError) as error:
        watch(tmp_path).look(state, 1e-3)
    reported = str(error.value)
    assert "10 times in a row, up to update 10, at a learning rate of 0.001" in reported
    assert "the loss never was" in reported
    assert "there is no checkpoint yet" in reported
    assert "\n" not in reported
