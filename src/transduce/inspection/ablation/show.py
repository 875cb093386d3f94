"""An ablation: its numbers, and how it is shown: a page, heat maps as a picture, JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from transduce.evaluation.bootstrap import Difference
from transduce.evaluation.metrics import TITLES, decimals, higher_is_better
from transduce.inspection.ablation.measure import BUDGETS, KINDS, POINTS, HeadImportance, Removal
from transduce.inspection.drawings import curves, heat_map
from transduce.inspection.page import (
    Markup,
    document,
    framed,
    paragraph,
    section,
    table,
)
from transduce.storage import make_folder, write_json, write_text

STRONGEST = 0.6  # of a cell's colour: numbers stand on it
FORMATS = (".html", ".json", ".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Ablation:
    """How much each head of a model matters."""

    model: str
    metric: str
    value: float
    """Of the whole model."""
    corpus: str
    items: int
    importances: list[HeadImportance]
    removals: list[Removal] = field(default_factory=list)
    """Greedy pruning, the first that was removed first."""

    @property
    def sign(self) -> int:
        """By which a change is multiplied to say how much worse it is."""
        return -1 if higher_is_better(self.metric) else 1

    def harm(self, change: Difference) -> float:
        """How much worse, in points or nats; below zero it is better."""
        return self.sign * change.value

    @property
    def affordable(self) -> dict[float, int]:
        """How many heads can go before the metric is worse by more than so much.

        Pruning may get worse and better again; all that was removed up to a step counts.
        """
        budgets = BUDGETS.get(self.metric, POINTS)
        harms = [self.harm(step.change) for step in self.removals]
        found = {}
        for budget in budgets:
            within = [number for number, harm in enumerate(harms, 1) if harm <= budget + 1e-12]
            found[budget] = max(within, default=0)
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "metric": self.metric,
            "value": self.value,
            "higher_is_better": self.sign < 0,
            "corpus": self.corpus,
            "items": self.items,
            "heads": [importance.to_json() for importance in self.importances],
            "pruning": [step.to_json() for step in self.removals],
            "affordable": {str(budget): count for budget, count in self.affordable.items()},
        }

    def _repr_html_(self) -> str:
        return framed(ablation_page(self))


def write_ablation(ablation: Ablation, path: Path) -> None:
    """By the ending of the name: a page for a browser, numbers, or a picture."""
    make_folder(path.parent)
    if path.suffix == ".json":
        write_json(path, ablation.to_json())
    elif path.suffix == ".html":
        write_text(path, ablation_page(ablation))
    else:
        draw_ablation(ablation, path)


def grids(ablation: Ablation) -> dict[str, NDArray[np.float64]]:
    """By kind, how much worse it is without each head: [layers, heads], nan where none is."""
    found = {}
    for kind in KINDS:
        own = [importance for importance in ablation.importances if importance.head.kind == kind]
        if not own:
            continue
        layers = 1 + max(importance.head.layer for importance in own)
        heads = 1 + max(importance.head.head for importance in own)
        grid_LH = np.full((layers, heads), np.nan)
        for importance in own:
            grid_LH[importance.head.layer, importance.head.head] = ablation.harm(importance.change)
        found[kind] = grid_LH
    return found


def unit(ablation: Ablation) -> str:
    """What a change is counted in."""
    return "nats per token" if ablation.metric == "loss" else "points"


def ablation_page(ablation: Ablation) -> str:
    title = TITLES.get(ablation.metric, ablation.metric)
    digits = digits_of(ablation)
    lead = (
        f"{ablation.items:,} items of {ablation.corpus}; {title} of the whole model: "
        f"{ablation.value:.{digits}f}. How much worse it is ({unit(ablation)}) without each head; "
        f"below zero (green) it is better without."
    )
    found = grids(ablation)
    strongest = max((float(np.nanmax(np.abs(grid))) for grid in found.values()), default=0.0)
    maps = []
    for kind, grid_LH in found.items():
        shown_LH = np.nan_to_num(grid_LH) / max(strongest, 1e-12) * STRONGEST
        numbers = [
            ["" if np.isnan(one) else f"{one:+.{digits - 1}f}" for one in row_H]
            for row_H in grid_LH
        ]
        rows = [f"layer {layer}" for layer in range(grid_LH.shape[0])]
        columns = [str(head) for head in range(grid_LH.shape[1])]
        maps.append(heat_map(shown_LH, rows, columns, KINDS[kind], 48.0, numbers))
    parts = [section("Every head", *maps, _table(ablation))]
    if ablation.removals:
        parts.append(section("Greedy pruning", *_pruning(ablation)))
    return document(f"Attention heads of {ablation.model}", lead, parts)


def digits_of(ablation: Ablation) -> int:
    return 4 if ablation.metric == "loss" else decimals(ablation.metric)


def _table(ablation: Ablation) -> Markup:
    digits = digits_of(ablation)
    order = sorted(ablation.importances, key=lambda importance: -ablation.harm(importance.change))
    rows: list[list[object]] = []
    for importance in order:
        change = importance.change
        shown: object = f"{change.value:+.{digits}f}"
        if change.is_clear:
            worse = ablation.harm(change) > 0
            shown = Markup(f'<b class="{"worse" if worse else "better"}">{shown}</b>')
        interval = (
            "" if change.low is None else f"[{change.low:+.{digits}f}, {change.high:+.{digits}f}]"
        )
        rows.append(
            [
                KINDS[importance.head.kind],
                importance.head.layer,
                importance.head.head,
                shown,
                interval,
            ]
        )
    head = ["kind", "layer", "head", f"change of {ablation.metric}", "95 % interval"]
    made = table(head, rows)
    return Markup(f"<details><summary>All heads, the most needed first</summary>{made}</details>")


def _pruning(ablation: Ablation) -> list[Markup]:
    digits, total = digits_of(ablation), len(ablation.importances)
    points = [(0.0, 0.0)] + [
        (float(total - step.kept), ablation.harm(step.change)) for step in ablation.removals
    ]
    budgets = "; ".join(
        f"{count} of {total} for {budget:g}" for budget, count in ablation.affordable.items()
    )
    rows = [
        [str(step.head), step.kept, f"{step.change.value:+.{digits}f}"]
        for step in ablation.removals
    ]
    made = table(["removed", "heads kept", f"change of {ablation.metric}"], rows)
    return [
        paragraph(f"Heads that can go before it is worse by so many {unit(ablation)}: {budgets}."),
        paragraph(
            "Chosen and measured on the same items: on new ones pruning usually does more harm.",
            "note",
        ),
        curves({"worse by": points}, "how much worse, by heads removed", "heads removed"),
        Markup(f"<details><summary>Step by step</summary>{made}</details>"),
    ]


def draw_ablation(ablation: Ablation, path: Path) -> None:
    """A heat map for each kind of attention, beside one another."""
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    from transduce.inspection.figures import INK, save

    found = grids(ablation)
    values = np.concatenate([grid[~np.isnan(grid)] for grid in found.values()])
    maximum = max(float(np.abs(values).max()), 1e-9)
    cell, digits = 0.62, digits_of(ablation)
    widths = [grid.shape[1] * cell + 0.9 for grid in found.values()]
    height = max(grid.shape[0] for grid in found.values()) * cell
    figure = Figure(figsize=(sum(widths) + 0.9, height + 1.2), facecolor="white")
    left, image = 0.7, None
    for (kind, grid_LH), width in zip(found.items(), widths, strict=True):
        layers, heads = grid_LH.shape
        box = [left, height + 0.5 - layers * cell, heads * cell, layers * cell]
        size = (figure.get_figwidth(), figure.get_figheight()) * 2
        axes = figure.add_axes(tuple(b / s for b, s in zip(box, size, strict=True)))
        norm = TwoSlopeNorm(0.0, -maximum, maximum)
        image = axes.imshow(grid_LH, cmap="PuOr_r", norm=norm, aspect="auto")
        for (layer, head), value in np.ndenumerate(grid_LH):
            if not np.isnan(value):
                colour = "white" if abs(value) > 0.7 * maximum else INK
                shown = f"{value:+.{digits - 1}f}"
                axes.text(head, layer, shown, ha="center", va="center", size=7.5, color=colour)
        axes.set_xticks(range(heads))
        axes.set_yticks(range(layers))
        axes.tick_params(length=0, labelsize=8)
        axes.set_title(KINDS[kind], size=9, color=INK)
        axes.set_xlabel("head", size=8)
        axes.set_ylabel("layer", size=8)
        left += width
    bar = figure.add_axes(
        (1 - 0.75 / figure.get_figwidth(), 0.3, 0.13 / figure.get_figwidth(), 0.5)
    )
    assert image is not None
    figure.colorbar(image, cax=bar)
    bar.tick_params(labelsize=7)
    bar.set_title("worse by", size=7)
    save(figure, path)
