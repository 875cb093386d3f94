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
    """The same of the items of each group, where there are several."""
    mean: dict[str, Metric] = field(default_factory=dict)
    """The mean over the groups, each counting alike however many items it has."""
    name: str = ""
    """Under which the folder's metrics.json has it."""
    skipped: int = 0
    """Pairs that could not be judged: with another number of labels than of words."""
    warning: str = ""
    """What makes a metric say little."""
    rows: dict[str, Measured] = field(default_factory=dict)
    """What each metric counted in every item."""
    slices: Slices | None = None
    """The items cut as was asked for, and the scores of each slice."""
    by_slice: SliceScores | None = None
