"""Decoding settings, chosen on the validation set once the network is trained: a few are tried, one
after the other, and the best are written into the model (`validation.decoding: chosen`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from transduce.evaluation.bootstrap import resampled
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import Measured, higher_is_better
from transduce.evaluation.score import Answer, scored_rows
from transduce.recipe import Decode, Recipe
from transduce.tasks.folder import keeps_recipe
from transduce.tasks.transduce import Model

T = TypeVar("T")
Given = dict[str, float]
"""Decoding settings by name, all else as in the recipe."""

MAX_ROWS = 200
MIN_ROWS = 20  # of more, if decoding is slow
FEWEST = 4  # pairs to choose by: of three, two outputs would be sure. See surely_better
FRACTION = 0.1  # of train.minutes
MIN_SECONDS, MAX_SECONDS = 20.0, 120.0  # seconds that are spent, whatever train.minutes is
SURE, RESAMPLES = 0.95, 1000  # see surely_better
BEAM = 4  # where the recipe is greedy
LENGTH_PENALTIES = (0.0, 0.5, 1.0, 1.5)
# 0.3 is usual (Watanabe et al. 2017), and doubled the errors on spoken digits; 1 is CTC alone.
CTC_WEIGHTS = (0.0, 0.1, 0.3, 0.6, 1.0)


@dataclass(frozen=True)
class Tried(Generic[T]):
    """Settings, and what was measured with them."""

    given: Given
    measured: T


def tries(decode: Decode, ctc: bool, best: Callable[[], Given]) -> Iterator[Given]:
    """Settings to try, the recipe's own first; each key from the `best` so far.

    One key after the other, as a grid of all would take too long: the weight of CTC, greedy search
    against a beam, the length penalty.
    """
    own: Given = {"beam": decode.beam, "length_penalty": decode.length_penalty}
    if ctc:
        own["ctc_weight"] = decode.ctc_weight
    yield own
    for weight in CTC_WEIGHTS if ctc else ():
        if weight != own["ctc_weight"]:
            yield {**own, "ctc_weight": weight}
    yield {**best(), "beam": 1 if decode.beam > 1 else BEAM}
    start = best()
    for penalty in LENGTH_PENALTIES if start["beam"] > 1 else ():
        if penalty != start["length_penalty"]:
            yield {**start, "length_penalty": penalty}


def choose(
    measure: Callable[[Given], T],
    is_better: Callable[[T, T], bool],
    decode: Decode,
    ctc: bool,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[Tried[T]]:
    """All that was tried within so many seconds, the best first; earlier ones, the recipe's own
    before all, are kept unless others are better."""
    began, longest = clock(), 0.0
    tried: list[Tried[T]] = []
    for given in tries(decode, ctc, lambda: dict(tried[0].given)):
        before = clock()
        if tried and before - began + longest > seconds:
            break
        found = Tried(given, measure(given))
        longest = max(longest, clock() - before)
        better = not tried or is_better(found.measured, tried[0].measured)
        tried.insert(0 if better else len(tried), found)
    return tried


def surely_better(metric: str, one: Measured, other: Measured) -> bool:
    """Whether one is better than the other in SURE of the resamples of the pairs: by three outputs
    it about is, by one or two it is not. The checkpoint was chosen by greedy search on the same
    pairs, which makes that look a little too good."""
    # The same seed draws the same pairs.
    found = resampled(*one[:2], RESAMPLES) - resampled(*other[:2], RESAMPLES)
    better = found > 0 if higher_is_better(metric) else found < 0
    return bool(better.mean() >= SURE)


def choose_decoding(
    model: Model,
    folder: Path,
    items: Sequence[Item],
    print_line: Callable[[str], object],
) -> None:
    """Choose the decoding settings of a trained model, and write them into its folder.

    items: of the validation set. print_line: gets a sentence about the choice.
    """
    recipe = model.recipe
    metric = recipe.validation.metric
    metric = recipe.metrics[0] if metric == "loss" else metric
    if len(items) < FEWEST:
        pairs = "pair is" if len(items) == 1 else "pairs are"
        print_line(
            f"Decoding as in the recipe: {len(items)} validation {pairs} too few to choose by."
        )
        return
    ctc = recipe.model.transducer is None and bool(recipe.model.ctc_weight)
    clock = clock_of(recipe)
    seconds, began = seconds_for(recipe), clock()
    first = [item.source for item in items[:MIN_ROWS]]
    model.run(first)
    rows = rows_for(seconds, (clock() - began) / len(first), ctc)
    some = items[:: -(-len(items) // rows)]

    def measure(given: Given) -> Measured:
        outputs = model.run([item.source for item in some], **_as_run_takes(given))
        answers = [Answer.of(output) for output in outputs]
        return scored_rows(model, some, answers, [metric])[metric]

    better = partial(surely_better, metric)
    tried = choose(measure, better, recipe.decode, ctc, seconds, clock)
    best = tried[0]
    own = recipe.decode.model_dump()
    changed = {name: value for name, value in best.given.items() if own[name] != value}
    shown = "; ".join(f"{_in_words(one.given, own)} {_value(one.measured):.2f}" for one in tried)
    print_line(f"Decoding, {metric} on {len(some)} validation pairs: {shown}.")
    if not changed and len(tried) > 1:
        print_line("The recipe's own are kept: none of the others is surely better.")
    if not changed:
        return
    kept = keeps_recipe(folder, recipe)
    decode = recipe.decode.model_copy(update=_as_run_takes(best.given))
    model.recipe = recipe.model_copy(update={"decode": decode})
    if kept:  # the user's own file
        print_line(f"recipe.yaml is your own: write decode: {changed} into it.")
    else:
        model.save_definition(folder)
        print_line(f"The best are written into the model: {_in_words(best.given, own)}.")


def rows_for(seconds: float, each: float, ctc: bool) -> int:
    """So many pairs that all settings can be tried in the time, where one takes `each` seconds."""
    count = len(LENGTH_PENALTIES) + 1 + (len(CTC_WEIGHTS) if ctc else 0)
    return int(min(max(seconds / count / max(each, 1e-9), MIN_ROWS), MAX_ROWS))


def clock_of(recipe: Recipe) -> Callable[[], float]:
    """Seconds by train.clock: what else the machine does then changes nothing."""
    if recipe.train.clock == "wall":
        return time.monotonic
    return lambda: time.process_time() / torch.get_num_threads()


def seconds_for(recipe: Recipe) -> float:
    """How long the settings of a run may be tried."""
    minutes = recipe.train.minutes
    return (
        MAX_SECONDS
        if minutes is None
        else min(max(60 * FRACTION * minutes, MIN_SECONDS), MAX_SECONDS)
    )


def _value(measured: Measured) -> float:
    return measured.score(measured.statistics.sum(axis=0))


def _as_run_takes(given: Given) -> dict[str, Any]:
    return {name: int(value) if name == "beam" else value for name, value in given.items()}


def _in_words(given: Given, own: Mapping[str, object]) -> str:
    """The settings that differ from the recipe's own."""
    changed = {name: value for name, value in given.items() if own[name] != value}
    named = [f"{name} {value:g}" for name, value in changed.items()]
    return ", ".join(named) or f"as in the recipe (beam {given['beam']:g})"
