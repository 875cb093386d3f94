"""Bootstrap resampling: how sure a score, a difference of two scores or a gap between slices is.

A corpus score is a function of the sum of one row of statistics an item (n-gram matches, edits,
hits). A resample draws as many items as there are, with replacement; its score is that of the
weighted sum of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Statistics = npt.NDArray[np.float64]  # one row an item; a corpus is the sum of its rows
Score = Callable[[Statistics], float]
Values = npt.NDArray[np.float64]
RESAMPLES = 1000


def _draws(items: int, resamples: int, seed: int) -> Iterator[Statistics]:
    """How often each item was drawn, for one resample after the other."""
    random = np.random.default_rng(seed)
    for _ in range(resamples):
        drawn = np.bincount(random.integers(items, size=items), minlength=items)
        yield drawn.astype(np.float64)


def resampled(
    statistics: Statistics, score: Score, resamples: int = RESAMPLES, seed: int = 1
) -> Values:
    """The scores of so many resampled corpora."""
    draws = _draws(len(statistics), resamples, seed)
    return np.array([score(drawn @ statistics) for drawn in draws])


def middle(values: Values) -> tuple[float, float]:
    """Between which the middle 95 % of values lie."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def interval(
    statistics: Statistics, score: Score, bootstrap: int, seed: int
) -> tuple[float | None, float | None]:
    """The middle 95 % of the scores of resampled corpora; none where there are no resamples."""
    if bootstrap <= 0:
        return None, None
    return middle(resampled(statistics, score, bootstrap, seed))


def in_brackets(low: float | None, high: float | None, form: str = ".2f") -> str:
    """An interval behind its value, as in " [29.10, 33.40]"; empty where there is none."""
    return "" if low is None or high is None else f" [{low:{form}}, {high:{form}}]"


def p_value(p: float | None) -> str:
    """A p-value of resampling: three digits tell all that a thousand resamples can."""
    if p is None:
        return ""
    return f"{p:.3f}" if p >= 0.0015 else "0.001 or less"


@dataclass(frozen=True)
class Difference:
    """By how much a score is another one's, with its 95 % interval and p-value."""

    value: float
    low: float | None
    high: float | None
    p: float | None
    """How often a difference as large, up or down, would come by chance if there were none."""

    @property
    def is_clear(self) -> bool:
        """Whether zero lies outside the interval."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    def shown(self, decimals: int = 2) -> str:
        """The difference and its interval, with signs."""
        form = f"+.{decimals}f"
        return f"{self.value:{form}}{in_brackets(self.low, self.high, form)}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def paired_difference(
    first: tuple[Statistics, Score],
    second: tuple[Statistics, Score],
    resamples: int = RESAMPLES,
    seed: int = 1,
) -> Difference:
    """Score of the second minus score of the first, on the same items.

    Paired bootstrap resampling (Koehn 2004, https://aclanthology.org/W04-3250): every resample
    draws the same items for both. The interval is the middle 95 % of the differences. The p-value
    is two-sided: the share of resamples whose difference is as far from the measured one as that is
    from zero, with 1 added to both counts. Where the rows are not one an item there
    is neither.
    """
    value = second[1](second[0].sum(axis=0)) - first[1](first[0].sum(axis=0))
    if len(first[0]) != len(second[0]) or resamples <= 0:
        return Difference(value, None, None, None)
    # The same seed draws the same items.
    found = resampled(*second, resamples, seed) - resampled(*first, resamples, seed)
    low, high = middle(found)
    # Two sums of the same numbers in another order may differ by a rounding error.
    as_far = np.abs(found - value) >= abs(value) - 1e-9
    return Difference(value, low, high, (int(as_far.sum()) + 1) / (resamples + 1))


@dataclass(frozen=True)
class Gap:
    """How far the best slice of a corpus is from the worst."""

    best: str
    worst: str
    value: float
    low: float | None
    high: float | None
    p: float | None
    """How often slices of these sizes, cut at random, have such a gap between any two of them."""

    def sentence(self, metric: str) -> str:
        chance = "" if self.p is None else f"; p {p_value(self.p)} for slices cut at random"
        return (
            f"gap in {metric} between {self.best} (best) and {self.worst} (worst): "
            f"{self.value:.2f}{in_brackets(self.low, self.high)}{chance}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def slice_gap(
    statistics: Statistics,
    score: Score,
    slices: Sequence[str],
    higher_is_better: bool,
    resamples: int = RESAMPLES,
    seed: int = 1,
) -> Gap | None:
    """The gap between the best and the worst slice; `slices` names the slice of each row.

    Its interval resamples the items of these two slices, each within itself. As they were chosen
    for being the best and the worst, the gap is larger than it would be on new items, the more so
    the more slices there are and the smaller they are; p says how often chance alone does that
    (a permutation test). None where there are not two slices.
    """
    names = sorted(set(slices))
    if len(names) < 2 or len(statistics) != len(slices):
        return None
    places = {name: np.flatnonzero(np.array(slices) == name) for name in names}
    values = {name: score(statistics[own].sum(axis=0)) for name, own in places.items()}
    order = sorted(names, key=lambda name: values[name], reverse=higher_is_better)
    best, worst = order[0], order[-1]
    value = abs(values[best] - values[worst])
    if resamples <= 0:
        return Gap(best, worst, value, None, None, None)
    sign = 1.0 if higher_is_better else -1.0
    upper = resampled(statistics[places[best]], score, resamples, seed)
    lower = resampled(statistics[places[worst]], score, resamples, seed + 1)
    low, high = middle(sign * (upper - lower))
    random = np.random.default_rng(seed)
    sizes = [len(places[name]) for name in names]
    starts = np.cumsum([0, *sizes[:-1]])
    as_large = 0
    for _ in range(resamples):
        shuffled = statistics[random.permutation(len(statistics))]
        found = [score(total) for total in np.add.reduceat(shuffled, starts, axis=0)]
        as_large += max(found) - min(found) >= value - 1e-9
    return Gap(best, worst, value, low, high, (as_large + 1) / (resamples + 1))
