"""The figure of a search: how much each key mattered, and the scores of the values tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transduce.evaluation.metrics import higher_is_better
from transduce.inspection.figures import COLORS, INK, save
from transduce.tuning.results import Results, share_text
from transduce.tuning.rungs import rungs_of
from transduce.tuning.space import Range, Searched, short_names, shown, value_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
PANEL = (3.1, 2.3)  # inches of a panel, with its labels
STEPS = (0.35, 0.62, 0.95)  # of the colour map, for the rungs from the first to the last
BEST, LINE = "#e08214", "#999999"
MARGIN = 0.05  # of a range, on either side of it
SHOWN = 0.85  # of the scores, the best ones; those beyond are at the edge


def draw(results: Results, path: Path) -> None:
    """A panel for each key, the most important first: its values and the scores of the trials.

    A trial has a point at each rung that it has reached, darker the longer it was trained: points
    of one colour can be compared. The ring is the best trial, the line the recipe's own value.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    study, names = results.study, short_names(results.study.space)
    keys = sorted(study.space, key=lambda key: -results.importance.get(key, 0.0))
    shares = rungs_of(study.recipe)
    colours = [colormaps[COLORS](step) for step in STEPS[-len(shares) :]]
    columns = min(COLUMNS, len(keys))
    lines = math.ceil(len(keys) / columns)
    figure = Figure(figsize=(PANEL[0] * columns, PANEL[1] * lines + 0.6), layout="constrained")
    window = _window(results)
    for number, key in enumerate(keys):
        axes = figure.add_subplot(lines, columns, number + 1)
        _panel(axes, results, key, colours, window)
        title = names[key]
        if results.importance:
            title += f"  ({100 * results.importance[key]:.0f} %)"
        axes.set_title(title, size=10, color=INK, loc="left")
        if number % columns == 0:
            axes.set_ylabel(results.title, size=8, color=INK)
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=_trained(share))
        for colour, share in zip(colours, shares, strict=True)
    ]
    ring = Line2D([], [], marker="o", linestyle="", markersize=10, fillstyle="none", color=BEST)
    ring.set_label(f"the best, trial {results.best.number}")
    line = Line2D([], [], color=LINE, linewidth=1, label="the recipe's value")
    handles += [ring, line]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    better = "higher" if higher_is_better(study.metric) else "lower"
    about = f"{results.title} on the validation set, {better} is better"
    if results.importance:
        about += "\nin brackets: how much a key mattered at the first rung (PED-ANOVA), roughly"
    figure.suptitle(about, size=9, color=INK, x=0.01, ha="left")
    save(figure, path)


def _trained(share: float) -> str:
    return "trained in full" if share == 1 else f"after {share_text(share)} of the training"


def _window(results: Results) -> tuple[float, float]:
    """The scores that are shown: a trial that learnt nothing must not flatten the rest."""
    metric = results.study.metric
    scores = [score for trial in results.trials for score in trial.scores if score is not None]
    assert results.best.best is not None
    ordered = sorted([*scores, results.best.best], reverse=higher_is_better(metric))
    worst = ordered[max(math.ceil(SHOWN * len(ordered)) - 1, 0)]
    low, high = sorted((ordered[0], worst))
    room = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _panel(
    axes: Axes,
    results: Results,
    key: str,
    colours: Sequence[tuple[float, float, float, float]],
    window: tuple[float, float],
) -> None:
    """The scores of a key's values."""
    place = _scale(axes, results.study.space[key])
    own = place(value_of(results.study.recipe, key))
    if not math.isnan(own):
        axes.axvline(own, color=LINE, linewidth=1, zorder=0)
    low, high = window
    for trial in results.trials:
        for score, colour in zip(trial.scores, colours, strict=False):
            if score is None:
                continue
            # A triangle at the edge: its score is beyond it.
            mark = "^" if score > high else "v" if score < low else "o"
            shown_at = min(max(score, low), high)
            at = place(trial.values[key])
            if at is not None:
                axes.plot(at, shown_at, mark, color=colour, markersize=5)
    best = results.best
    assert best.best is not None
    at = place(best.values[key])
    assert at is not None, "a trial has a value of the space"
    axes.plot(at, best.best, "o", markersize=11, fillstyle="none", color=BEST, clip_on=False)
    axes.set_ylim(low, high)
    axes.tick_params(labelsize=7, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _scale(axes: Axes, searched: Searched) -> Callable[[Any], float]:
    """Lay out the values of a key; returns where each is, NaN for one that is not among them."""
    from matplotlib.ticker import MaxNLocator, NullFormatter

    if not isinstance(searched, Range):
        order = [shown(value) for value in searched.values]
        axes.set_xticks(range(len(order)), order)
        axes.set_xlim(-0.5, len(order) - 0.5)
        return lambda value: float(order.index(shown(value))) if shown(value) in order else math.nan
    low, high = searched.low, searched.high
    if searched.log:
        axes.set_xscale("log")
        axes.set_xlim(low / (high / low) ** MARGIN, high * (high / low) ** MARGIN)
        ticks = [low * (high / low) ** part for part in (0.0, 1 / 3, 2 / 3, 1.0)]
        axes.set_xticks(ticks, [f"{tick:.2g}" for tick in ticks])
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(low - MARGIN * (high - low), high + MARGIN * (high - low))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=searched.whole))
    return lambda value: float(value) if searched.holds(value) else math.nan
