"""Counters and histograms that cost little to add to; Prometheus reads them when it asks."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Histogram:
    """How many values are in each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, each with its upper bound."""
        found, total = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            found.append((_text(bound), float(total)))
        return found


class Family(Collector):
    """Counters or histograms of one name, by the values of their labels.

    Only the event loop adds to them.
    """

    def __init__(
        self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float] = ()
    ) -> None:
        self.name, self.about, self.labels, self.bounds = name, about, labels, bounds
        self.counts: dict[tuple[str, ...], float] = {}
        self.histograms: dict[tuple[str, ...], Histogram] = {}

    def histogram(self, *values: str) -> Histogram:
        """The histogram of these labels."""
        found = self.histograms.get(values)
        if found is None:
            found = self.histograms[values] = Histogram(self.bounds)
        return found

    def collect(self) -> Iterable[Metric]:
        if self.bounds:
            histogram = HistogramMetricFamily(self.name, self.about, labels=self.labels)
            for values, one in self.histograms.items():
                histogram.add_metric(values, one.buckets(), one.sum)
            return [histogram]
        counter = CounterMetricFamily(self.name, self.about, labels=self.labels)
        for values, count in self.counts.items():
            counter.add_metric(values, count)
        return [counter]


def _text(bound: float) -> str:
    """As Prometheus writes it: 0.5, 1.0, +Inf."""
    return "+Inf" if bound == float("inf") else str(bound)
