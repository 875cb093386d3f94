"""Decoding settings chosen on the validation set: what is tried, what is taken, when it ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tiny_models import tiny
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import Measured
from transduce.recipe import RECIPE, Decode, dump_recipe, load_recipe
from transduce.training.choose_decoding import (
    CTC_WEIGHTS,
    LENGTH_PENALTIES,
    Given,
    Tried,
    choose,
    choose_decoding,
    rows_for,
    seconds_for,
    surely_better,
)


class Clock:
    """Time that passes only while something is measured."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def chosen(
    values: dict[tuple[str, float], float],
    decode: Decode | None = None,
    ctc: bool = False,
    seconds: float = 100.0,
) -> list[Tried[float]]:
    """values: what a setting adds to the score; each measurement takes a second."""
    clock = Clock()

    def measure(given: Given) -> float:
        clock.now += 1
        return sum(values.get(setting, 0.0) for setting in given.items())

    return choose(measure, lambda one, other: one > other, decode or Decode(), ctc, seconds, clock)


def test_the_recipes_own_settings_are_kept_unless_others_are_better() -> None:
    own = {"beam": 5, "length_penalty": 1.0}
    assert chosen({})[0].given == own
    tried = chosen({("length_penalty", 0.5): 1.0, ("beam", 1): -1.0})
    assert tried[0].given == {"beam": 5, "length_penalty": 0.5}
    assert {one.given["length_penalty"] for one in tried} == set(LENGTH_PENALTIES)
    assert own in [one.given for one in tried]


def test_greedy_search_against_a_beam() -> None:
    greedy = chosen({("beam", 1): 1.0})
    assert greedy[0].given["beam"] == 1
    assert len(greedy) == 2  # greedy search has no length penalty
    beam = chosen({("beam", 4): 1.0, ("length_penalty", 0.0): 1.0}, Decode(beam=1))
    assert beam[0].given == {"beam": 4, "length_penalty": 0.0}


def test_the_weight_of_ctc_is_tried_for_speech_alone() -> None:
    decode = Decode(beam=4, ctc_weight=0.3, length_penalty=0.0)
    tried = chosen({("ctc_weight", 0.0): 2.0, ("ctc_weight", 1.0): 1.0}, decode, ctc=True)
    assert tried[0].given == {"beam": 4, "length_penalty": 0.0, "ctc_weight": 0.0}
    assert {one.given["ctc_weight"] for one in tried} == set(CTC_WEIGHTS)
    # What comes after it is tried with the best weight.
    assert all(one.given["ctc_weight"] == 0.0 for one in tried if one.given["beam"] == 1)
    assert all("ctc_weight" not in one.given for one in chosen({}))
    assert len({tuple(one.given.items()) for one in tried}) == len(tried)  # nothing twice


@pytest.mark.parametrize(("seconds", "count"), [(0.5, 1), (1.5, 1), (3.5, 3), (100, 5)])
def test_it_ends_within_its_time_but_measures_the_recipes_own(seconds: float, count: int) -> None:
    assert len(chosen({}, seconds=seconds)) == count


def test_slow_decoding_means_fewer_pairs() -> None:
    assert [rows_for(50, each, False) for each in (0.0, 0.01, 0.1, 9)] == [200, 200, 100, 20]
    assert rows_for(50, 0.1, True) == 50  # more settings are tried


def measured(right: list[int]) -> Measured:
    rows = np.array([[float(one), 1.0] for one in right])
    return Measured(rows, lambda total: float(total[0] / total[1]), {})


def test_a_few_outputs_do_not_decide() -> None:
    base = [0] * 50 + [1] * 50
    two, five = ([1] * n + base[n:] for n in (2, 5))
    assert not surely_better("exact", measured(two), measured(base))
    assert surely_better("exact", measured(five), measured(base))
    for pairs in (4, 8):  # two outputs are not enough, however few the pairs are
        none, two, three = ([1] * n + [0] * (pairs - n) for n in (0, 2, 3))
        assert not surely_better("exact", measured(two), measured(none))
        assert surely_better("exact", measured(three), measured(none))
    assert not surely_better("exact", measured(base), measured(five))
    assert surely_better("cer", measured(base), measured(five))  # less of it is better
    assert not surely_better("exact", measured(base), measured(base))


def test_what_is_kept_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    before = (model := tiny()).recipe
    choose_decoding(model, tmp_path, [Item("tea", ["nothing"])] * 20, said.append)
    assert said[0].startswith("Decoding, ")
    assert said[1] == "The recipe's own are kept: none of the others is surely better."
    assert model.recipe == before


class Empty:
    """A model that has learnt little: the most probable output is none, and a beam finds it."""

    def __init__(self) -> None:
        self.recipe = load_recipe("multi30k-en-de", ["decode.beam=5", "validation.metric=chrf"])

    def run(self, sources: list[str], **settings: float) -> list[SimpleNamespace]:
        text = "a tea" if settings.get("beam", 5) == 1 else ""
        return [SimpleNamespace(text=text, tokens=[], probabilities=[]) for _ in sources]

    def save_definition(self, folder: Path) -> None: ...


@pytest.mark.parametrize(("pairs", "beam"), [(3, 5), (4, 1), (30, 1)])
def test_few_pairs_are_enough_for_a_difference_in_all(
    pairs: int, beam: int, tmp_path: Path
) -> None:
    said: list[str] = []
    model, items = Empty(), [Item(str(n), ["the tea"]) for n in range(pairs)]
    choose_decoding(model, tmp_path, items, said.append)  # type: ignore[arg-type]
    assert model.recipe.decode.beam == beam
    few = "Decoding as in the recipe: 3 validation pairs are too few to choose by."
    assert said[0] == few if beam == 5 else said[0].startswith(f"Decoding, chrf on {pairs} ")


class Heard:
    """A model of speech that is right without CTC alone."""

    def __init__(self, *overrides: str) -> None:
        self.recipe = load_recipe("asterisk", overrides)
        self.asked: list[dict[str, float]] = []
        self.sources: set[str] = set()
        self.saved: list[Path] = []

    def run(self, sources: list[str], **settings: float) -> list[SimpleNamespace]:
        self.asked.append(settings)
        self.sources |= set(sources)
        text = "one" if settings.get("ctc_weight") == 0 else "two"
        return [SimpleNamespace(text=text, tokens=[], probabilities=[]) for _ in sources]

    def save_definition(self, folder: Path) -> None:
        self.saved.append(folder)


def choose_for(model: Heard, folder: Path) -> list[str]:
    said: list[str] = []
    items = [Item(str(place), ["one"]) for place in range(400)]
    choose_decoding(model, folder, items, said.append)  # type: ignore[arg-type]
    return said


def test_the_best_are_written_into_the_model(tmp_path: Path) -> None:
    model = Heard("validation.metric=wer")
    said = choose_for(model, tmp_path)
    assert said[0].startswith("Decoding, wer on 200 validation pairs: ctc_weight 0 0.00; ")
    assert said[1] == "The best are written into the model: ctc_weight 0."
    assert model.recipe.decode.ctc_weight == 0
    assert model.saved == [tmp_path]
    assert {int(source) % 2 for source in model.sources if int(source) > 20} == {0}  # all along
    assert "398" in model.sources


def test_a_recipe_of_the_users_own_is_not_written_over(tmp_path: Path) -> None:
    model = Heard()
    (tmp_path / RECIPE).write_text("# mine\n" + dump_recipe(model.recipe), "utf-8")
    assert choose_for(model, tmp_path)[1] == (
        "recipe.yaml is your own: write decode: {'ctc_weight': 0.0} into it."
    )
    assert not model.saved
    assert model.recipe.decode.ctc_weight == 0  # what is evaluated next


def test_a_transducer_has_no_weight_of_ctc(tmp_path: Path) -> None:
    decoder = "model.decoder={kind: recurrent, cell: lstm, attention: none}"
    model = Heard("model.transducer={}", decoder, "decode.ctc_weight=0")
    choose_for(model, tmp_path)
    assert len(model.asked) > 2
    assert not any("ctc_weight" in settings for settings in model.asked)


@pytest.mark.parametrize(("minutes", "seconds"), [("null", 120), (1, 20), (10, 60), (1000, 120)])
def test_a_share_of_the_time_is_for_the_choice(minutes: object, seconds: float) -> None:
    assert seconds_for(load_recipe("asterisk", [f"train.minutes={minutes}"])) == seconds


def test_by_the_processor_the_wall_clock_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that others use too would try fewer settings."""
    monkeypatch.setattr("time.monotonic", Clock())  # stands still
    worked = iter(range(0, 10**6, 30))
    monkeypatch.setattr("time.process_time", lambda: next(worked) * torch.get_num_threads())
    model = Heard("train.clock=processor", "train.minutes=1")
    choose_for(model, tmp_path)
    assert len(model.asked) == 2  # the first pairs, and the recipe's own settings
    model = Heard("train.minutes=1")
    choose_for(model, tmp_path)
    assert len(model.asked) > 5
