"""Our counters say what Prometheus' own say."""

from __future__ import annotations

import random

import pytest

prometheus = pytest.importorskip("prometheus_client", reason="needs the extra serve")

from transduce.serving.metrics import Family  # noqa: E402

BOUNDS = (0.005, 0.01, 0.25, 1.0, 2.5)


def lines(registry: prometheus.CollectorRegistry) -> list[str]:
    text = prometheus.generate_latest(registry).decode()
    return sorted(line for line in text.splitlines() if "_created" not in line)


def test_histograms_and_counters() -> None:
    draw = random.Random(3)
    values = [*BOUNDS, 0.0, 9.0, *(draw.expovariate(1) for _ in range(50))]
    ours, theirs = prometheus.CollectorRegistry(), prometheus.CollectorRegistry()
    time = Family("a:time_seconds", "Time.", ["model_name"], BOUNDS)
    count = Family("a:tokens", "Tokens.", ["model_name", "why"])
    ours.register(time)
    ours.register(count)
    other = prometheus.Histogram(
        "a:time_seconds", "Time.", ["model_name"], buckets=BOUNDS, registry=theirs
    )
    counter = prometheus.Counter("a:tokens", "Tokens.", ["model_name", "why"], registry=theirs)
    for place, value in enumerate(values):
        name = "xy"[place % 3 == 0]
        time.histogram(name).observe(value)
        other.labels(name).observe(value)
        count.counts[name, "stop"] = count.counts.get((name, "stop"), 0) + place
        counter.labels(name, "stop").inc(place)
    assert lines(ours) == lines(theirs)
