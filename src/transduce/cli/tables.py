"""Tables in the terminal: slices of a corpus, models side by side, heads."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transduce.terminal import aligned, say

if TYPE_CHECKING:
    from transduce.evaluation.bootstrap import Difference
    from transduce.evaluation.compare import ModelComparison
    from transduce.inspection.ablation.show import Ablation


def print_comparison(comparison: ModelComparison, examples: int) -> None:
    """The scores of each model, its difference from the first, and what differs most."""
    from transduce.evaluation.bootstrap import p_value
    from transduce.evaluation.metrics import TITLES
    from transduce.evaluation.slices import plain_source

    print(f"{len(comparison.items):,} items of {comparison.corpus}")
    rows = [["metric", "model", "score [95 %]", "difference [95 %]", "p"]]
    for name in comparison.metrics:
        for one in comparison.models:
            found = one.differences.get(name)
            change = [""] * 2 if found is None else [_marked(found), p_value(found.p)]
            score = one.metrics[name].with_interval if name in one.metrics else ""
            rows.append([TITLES.get(name, name), one.name, score, *change])
    for line in aligned(rows, left=2):
        print(line)
    for note in comparison.notes:
        say(note)
    if not comparison.models[0].outputs:
        return
    metric = comparison.metrics[0]
    for place in comparison.most_different(metric, examples):
        item = comparison.items[place]
        shown = [["", "source", plain_source(item)], ["", "reference", item.references[0]]]
        for one in comparison.models:
            score = f"{one.item_scores[metric][place]:.1f}"
            shown.append([score, one.name, one.outputs[place].text or "(nothing)"])
        print(f"\nitem {place + 1}, {TITLES.get(metric, metric)} of each by itself:")
        for line in aligned([[" ".join(c.split()) for c in row] for row in shown], left=3):
            print(f"  {line}")


def _marked(found: Difference, decimals: int = 2) -> str:
    """A difference and its interval; * where zero lies outside."""
    mark = "" if found.low is None else "*" if found.is_clear else " "
    return f"{found.shown(decimals)}{mark}"


def print_ablation(found: Ablation) -> None:
    """Every head, the most needed first, and how many can go."""
    from transduce.evaluation.metrics import TITLES
    from transduce.inspection.ablation.measure import KINDS
    from transduce.inspection.ablation.show import digits_of, unit

    digits, title = digits_of(found), TITLES.get(found.metric, found.metric)
    print(f"{title} of the whole model: {found.value:.{digits}f} ({found.items:,} items)")
    rows = [["without", "layer", "head", f"change of {title} [95 %]"]]
    for importance in sorted(found.importances, key=lambda one: -found.harm(one.change)):
        head = importance.head
        change = _marked(importance.change, digits)
        rows.append([KINDS[head.kind], str(head.layer), str(head.head), change])
    for line in aligned(rows):
        print(line)
    if not found.removals:
        return
    total, last = len(found.importances), found.removals[-1]
    print(
        f"pruned greedily to {last.kept} of {total} heads: {_marked(last.change, digits)}; "
        f"the first to go: {'; '.join(str(step.head) for step in found.removals[:5])}"
    )
    for budget, count in found.affordable.items():
        print(f"heads that can be pruned within {budget:g} {unit(found)}: {count} of {total}")


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Says on a terminal how far something is; elsewhere nothing."""
    shown = sys.stderr.isatty()

    def show(done: int, of: int) -> None:
        if shown:
            print(f"\r{what}: {done} of {of} ", end="", file=sys.stderr, flush=True)

    yield show
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
