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
    from transduce.evaluation.metrics import Metric
    from transduce.evaluation.slices import SliceScores
    from transduce.inspection.ablation.show import Ablation


def with_interval(metric: Metric | None) -> str:
    """A value and its interval: 31.25 [29.10, 33.40]."""
    if metric is None:
        return ""
    if metric.low is None or metric.high is None:
        return f"{metric.value:.2f}"
    return f"{metric.value:.2f} [{metric.low:.2f}, {metric.high:.2f}]"


def slice_table(scores: SliceScores) -> list[str]:
    """A row for each slice, and the gap between the best and the worst by each metric."""
    from transduce.evaluation.metrics import TITLES

    names = list(dict.fromkeys(name for found in scores.metrics.values() for name in found))
    titles = [TITLES.get(name, name) for name in names]
    rows = [[f"by {scores.by}", "items", *titles]]
    for part, found in scores.metrics.items():
        values = [with_interval(found.get(name)) for name in names]
        rows.append([part, f"{scores.counts[part]:,}", *values])
    lines = aligned(rows)
    for name, gap in scores.gaps.items():
        interval = "" if gap.low is None else f" [{gap.low:.2f}, {gap.high:.2f}]"
        chance = "" if gap.p is None else f"; p {format_p(gap.p)} for slices cut at random"
        lines.append(
            f"gap in {TITLES.get(name, name)} between {gap.best} (best) and {gap.worst} (worst): "
            f"{gap.value:.2f}{interval}{chance}"
        )
    return lines


def format_p(p: float) -> str:
    """A p-value of resampling: three digits tell all that a thousand resamples can."""
    return f"{p:.3f}" if p >= 0.0015 else "0.001 or less"


def print_comparison(comparison: ModelComparison, examples: int) -> None:
    """The scores of each model, its difference from the first, and what differs most."""
    from transduce.evaluation.metrics import TITLES
    from transduce.evaluation.slices import plain_source

    print(f"{len(comparison.items):,} items of {comparison.corpus}")
    rows = [["metric", "model", "score [95 %]", "difference [95 %]", "p"]]
    for name in comparison.metrics:
        for one in comparison.models:
            found = one.differences.get(name)
            change = [""] * 2 if found is None else [format_change(found), _p_of(found)]
            title = TITLES.get(name, name)
            rows.append([title, one.name, with_interval(one.metrics.get(name)), *change])
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


def format_change(found: Difference, decimals: int = 2) -> str:
    """A difference and its interval, with signs; * where zero lies outside."""
    text = f"{found.value:+.{decimals}f}"
    if found.low is None:
        return text
    mark = "*" if found.is_clear else " "
    return f"{text} [{found.low:+.{decimals}f}, {found.high:+.{decimals}f}]{mark}"


def _p_of(found: Difference) -> str:
    return "" if found.p is None else format_p(found.p)


def print_ablation(found: Ablation) -> None:
    """Every head, the most needed first, and how many can go."""
    from transduce.evaluation.metrics import TITLES
    from transduce.inspection.ablation.measure import KINDS
    from transduce.inspection.ablation.show import digits_of, unit

    digits, title = digits_of(found), TITLES.get(found.metric, found.metric)
    print(f"{title} of the whole model: {found.value:.{digits}f} ({found.items:,} items)")
    rows = [["without", "layer", "head", f"change of {title} [95 %]"]]
    for worth in sorted(found.worths, key=lambda one: -found.harm(one.change)):
        head = worth.head
        change = format_change(worth.change, digits)
        rows.append([KINDS[head.kind], str(head.layer), str(head.head), change])
    for line in aligned(rows):
        print(line)
    if not found.removals:
        return
    total, last = len(found.worths), found.removals[-1]
    print(
        f"pruned greedily to {last.kept} of {total} heads: {format_change(last.change, digits)}; "
        f"the first to go: {'; '.join(str(step.head) for step in found.removals[:5])}"
    )
    for budget, count in found.affordable.items():
        print(f"heads that can be pruned within {budget:g} {unit(found)}: {count} of {total}")


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Says on a terminal how far something is; elsewhere nothing."""
    shown = sys.stderr.isatty()

    def tell(done: int, of: int) -> None:
        if shown:
            print(f"\r{what}: {done} of {of} ", end="", file=sys.stderr, flush=True)

    yield tell
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
