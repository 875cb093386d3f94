"""The figure of a search: how much each key mattered, and the scores of the values tried."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.evaluation.metrics import higher_is_better
from transduce.inspection.figures import COLORS, INK, save
from transduce.tuning.results import Results, share_text
from transduce.tuning.rungs import Trial, rungs_of
from transduce.tuning.space import Range, short_names, shown, value_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 3
PANEL = (3.1, 2.3)  # inches of a panel, with its labels
STEPS = (0.35, 0.62, 0.95)  # of the colour map, for the rungs from the first to the last
BEST = "#e08214"


def draw(results: Results, path: Path) -> None:
    """A panel for each key, the most important first: its values and the scores of the trials.

    Darker points were trained longer; the ring is the best trial, the line the recipe's own value.
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
    scored = [trial for trial in results.trials if trial.best is not None]
    window = _window([trial.best for trial in scored if trial.best is not None], study.metric)
    for number, key in enumerate(keys):
        axes = figure.add_subplot(lines, columns, number + 1)
        _panel(axes, results, key, scored, colours)
        axes.set_ylim(*window)
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
    handles.append(ring)
    handles.append(Line2D([], [], color="#999999", linewidth=1, label="the recipe's value"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    better = "higher" if higher_is_better(study.metric) else "lower"
    about = f"{results.title} on the validation set, {better} is better"
    if results.importance:
        about += "; in brackets how much a key mattered (PED-ANOVA, at the first rung)"
    figure.suptitle(about, size=9, color=INK, x=0.01, ha="left")
    save(figure, path)


def _trained(share: float) -> str:
    return "trained in full" if share == 1 else f"trained to {share_text(share)}"


def _window(scores: list[float], metric: str) -> tuple[float, float]:
    """The scores that are shown: a trial that learnt nothing must not flatten the rest."""
    ordered = sorted(scores, reverse=higher_is_better(metric))
    worst = ordered[max(math.ceil(0.8 * len(ordered)) - 1, 0)]
    low, high = sorted((ordered[0], worst))
    room = 0.12 * (high - low) or 0.05 * abs(high) or 1.0
    return low - room, high + room


def _panel(
    axes: Axes,
    results: Results,
    key: str,
    scored: list[Trial],
    colours: list[tuple[float, float, float, float]],
) -> None:
    from matplotlib.ticker import MaxNLocator

    searched, own = results.study.space[key], value_of(results.study.recipe, key)
    low, high = _window([t.best for t in scored if t.best is not None], results.study.metric)
    if isinstance(searched, Range):
        places = {trial.number: float(trial.values[key]) for trial in scored}
        axes.set_xscale("log" if searched.log else "linear")
        here = float(own) if isinstance(own, int | float) else None
        if searched.whole and not searched.log:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        order = [shown(value) for value in searched.values]
        places = {trial.number: float(order.index(shown(trial.values[key]))) for trial in scored}
        axes.set_xticks(range(len(order)), order)
        axes.set_xlim(-0.5, len(order) - 0.5)
        here = float(order.index(shown(own))) if shown(own) in order else None
    if here is not None:
        axes.axvline(here, color="#999999", linewidth=1, zorder=0)
    for trial in reversed(scored):  # the best above the others
        assert trial.best is not None
        colour = colours[min(max(len(trial.scores), 1), len(colours)) - 1]
        inside = low <= trial.best <= high
        score = min(max(trial.best, low), high)
        # A triangle at the edge: its score is beyond it.
        mark = "o" if inside else "^" if trial.best > high else "v"
        axes.plot(places[trial.number], score, mark, color=colour, markersize=5, clip_on=False)
    best = results.best
    assert best.best is not None
    at = places[best.number]
    axes.plot(at, best.best, "o", markersize=11, fillstyle="none", color=BEST, clip_on=False)
    axes.tick_params(labelsize=7, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
