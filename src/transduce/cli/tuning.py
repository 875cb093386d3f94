"""What `transduce tune` prints: what is searched, each trial as it ends, and the results."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from transduce.cli.try_model import run_command
from transduce.terminal import aligned, duration

if TYPE_CHECKING:
    from transduce.tuning.results import Results
    from transduce.tuning.rungs import Trial
    from transduce.tuning.search import Limits, Search
    from transduce.tuning.segment import Outcome
    from transduce.tuning.study import Study


def print_beginning(study: Study, limits: Limits) -> None:
    """What is searched, and how."""
    from transduce.tuning.results import share_text
    from transduce.tuning.rungs import rungs_of
    from transduce.tuning.space import own_values, shown, value_of

    recipe = study.recipe
    rungs = [share_text(share) for share in rungs_of(recipe)]
    keys = "key" if len(study.space) == 1 else "keys"
    length = f"{recipe.train.steps:,} updates"
    if recipe.train.minutes is not None:
        length += f" or {duration(60 * recipe.train.minutes)}"
    within = "" if limits.minutes is None else f" in {duration(60 * limits.minutes)}"
    print(
        f"Searching {len(study.space)} {keys} of {recipe.name} for the best {study.metric} on the "
        f"validation set: up to {limits.trials} trials{within}."
    )
    rows = [["key", "recipe", "searched"]]
    for key, one in study.space.items():
        rows.append([key, shown(value_of(recipe, key)), one.about()])
    for line in aligned(rows, left=3):
        print(f"  {line}")
    if len(rungs) > 1:
        compared = " and ".join(rungs[:-1])
        print(
            f"A training has {length}; trials are compared after {compared} of it, and the best "
            f"third goes on."
        )
    else:
        print(
            f"A training has {length} and one validation, so every trial is trained in full; a "
            f"smaller validation.every would save most of that."
        )
    begun = len(study.trials())
    if begun:
        print(f"The search in {study.folder} goes on: it has {begun} trials.")
    elif own_values(recipe, study.space) is not None:
        print("Trial 0 is the recipe itself.")
    sys.stdout.flush()


def searched(study: Study, limits: Limits) -> float:
    """Search, with a line for each trial that reaches a rung; the seconds that it has taken."""
    from transduce.tuning.search import Search

    search: Search | None = None
    status = sys.stderr.isatty()

    def tell(trial: Trial, outcome: Outcome) -> None:
        if status:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        print(segment_line(study, trial, outcome), flush=True)

    def watch() -> None:
        if status and search is not None:
            print(f"\r{status_line(search)}\033[K", end="", file=sys.stderr, flush=True)

    search = Search(study, limits, tell)
    try:
        return search.run(watch)
    finally:
        if status:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def status_line(search: Search) -> str:
    """What is trained at the moment, and the time that is left."""
    from transduce.terminal import duration
    from transduce.tuning.segment import saved_state

    parts = []
    for one in search.running:
        step = int(saved_state(one.segment.folder).get("step", 0))
        parts.append(f"trial {one.trial.number} (checkpoint at update {step:,})")
    doing = ", ".join(parts) or "another process trains the last trials"
    left = search.seconds_left
    return doing if left is None else f"{doing}; {duration(left)} left"


def segment_line(study: Study, trial: Trial, outcome: Outcome) -> str:
    """One line for a trial that has reached a rung, ended, or been stopped."""
    from transduce.tuning.results import score_text, share_text
    from transduce.tuning.rungs import rungs_of
    from transduce.tuning.space import short_names, shown

    if outcome.end == "failed":
        return f"trial {trial.number:>2}  failed: {outcome.reason}"
    how = {
        "reached": f"{share_text(rungs_of(study.recipe)[trial.rung]):>7}",
        "finished": "in full",
        "stopped": "stopped",
    }[outcome.end]
    score = score_text(study.metric, outcome.best)
    at = f"update {outcome.updates:,}"
    line = f"trial {trial.number:>2}  {how}  {at:<13}  {study.metric} {score:>7}"
    if trial.rung:  # its values were said at its first rung
        return line
    names = short_names(study.space)
    values = " ".join(f"{name}={shown(trial.values[key])}" for key, name in names.items())
    return f"{line}  {values}"


def print_results(study: Study, limits: Limits, seconds: float) -> None:
    """The table, what mattered, the best recipe and its score on the test set; the files too."""
    from transduce.storage import locked
    from transduce.tuning.files import VALUES, test_scores, write_results
    from transduce.tuning.results import results_of, rows

    with locked(study.folder / VALUES):  # another process may end at the same time
        results = results_of(study)
        test = test_scores(results)
        write_results(results, seconds, test)
    print()
    left = [False, False, False, True, *[False] * len(study.space)]
    for line in aligned(rows(results), left):
        print(line)
    _print_mattered(results)
    _print_best(results, limits, test.get("words", []))


def _print_mattered(results: Results) -> None:
    from transduce.tuning.sample import FEWEST
    from transduce.tuning.space import short_names

    if not results.importance:
        print(f"What mattered can be said of {FEWEST} trials and more, over two keys and more.")
        return
    names = short_names(results.study.space)
    order = sorted(results.importance.items(), key=lambda one: -one[1])
    shares = ", ".join(f"{names[key]} {100 * share:.0f} %" for key, share in order)
    print(f"What mattered at the first rung, roughly: {shares}.")


def _print_best(results: Results, limits: Limits, test: list[str]) -> None:
    from transduce.tuning.files import BEST, FIGURE, TABLE, size_of
    from transduce.tuning.results import score_text
    from transduce.tuning.study import TRIALS

    study, best = results.study, results.best
    score = score_text(study.metric, best.best)
    if results.own() is best:
        print(f"The recipe itself is the best: {results.title} {score}.")
    else:
        print(
            f"The best is trial {best.number}: {results.title} {score} on the validation set, "
            f"which has chosen it, and so a little too good."
        )
        if compared := results.compared():
            print(compared)
    if test:
        print("On the test set it has:")
        for line in test:
            print(f"  {line}")
    folder, place = study.folder, study.run(best)
    if len(study.trials()) < limits.trials or any(one.on_its_way for one in results.trials):
        if busy := [one.number for one in results.trials if study.is_claimed(one)]:
            print(f"Another process trains trial {busy[0]}, and will say what it brought.")
        else:
            print(
                "The time was over before all was done: the same command with more --minutes "
                "goes on."
            )
    print(f"The table is {folder / TABLE}, the figure {folder / FIGURE}.")
    if best.finished:
        print(f"The best trial was trained in full; its model is in {place}. Try:")
        print(f"  {run_command(place, study.recipe)}")
    else:
        print("The best trial was not trained in full; to train it from where it stands:")
        print(f"  transduce train {place} --resume")
    print(f"Its recipe is {folder / BEST}; to train it from the beginning:")
    print(f"  transduce train {folder / BEST} --output runs/{study.recipe.name}-tuned")
    size = size_of(folder / TRIALS) / 1e6
    print(f"The trials take {size:,.0f} MB; {folder / TRIALS} can be removed when all is done.")
