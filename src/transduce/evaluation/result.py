"""What an evaluation has found."""

from __future__ import annotations

from dataclasses import dataclass, field

from transduce.decoding.output import Output
from transduce.evaluation.items import Item
from transduce.evaluation.metrics import Measured, Metric
from transduce.evaluation.slices import Slices, SliceScores


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, Metric]
    items: list[Item]
    outputs: list[Output]
    groups: dict[str, dict[str, Metric]] = field(default_factory=dict)
    """The same for the items of each group, if there are several."""
    mean: dict[str, Metric] = field(default_factory=dict)
    """The macro average over the groups."""
    name: str = ""
    """The key of this result in metrics.json."""
    skipped: int = 0
    """Pairs that were skipped: with different numbers of labels and words."""
    warning: str = ""
    """A warning about a metric that means little here."""
    rows: dict[str, Measured] = field(default_factory=dict)
    """What each metric counted in every item."""
    slices: Slices | None = None
    """The items cut as was asked for, and the scores of each slice."""
    by_slice: SliceScores | None = None
