"""Metrics in Prometheus format, under the names that dashboards for vLLM know.

The counters are our own, as they cost a tenth of Prometheus's to add to
(benchmarks/serving_parts.py); Prometheus reads them when it asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from transduce.serving.jobs import Job

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

REASONS = ("stop", "error", "abort")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self, models: Sequence[str]) -> None:
        self.registry = registry = CollectorRegistry()
        label = ["model_name"]

        def family(
            name: str, about: str, bounds: Sequence[float] = (), labels: Sequence[str] = label
        ) -> Family:
            made = Family(name, about, labels, bounds)
            registry.register(made)
            return made

        self._running = Gauge(
            "vllm:num_requests_running", "Requests that are being decoded.", registry=registry
        )
        self._waiting = Gauge(
            "vllm:num_requests_waiting", "Requests that are waiting.", registry=registry
        )
        self._queued = Gauge(
            "transduce:seconds_queued", "Time that the waiting work will take.", registry=registry
        )
        self._queue = family("vllm:request_queue_time_seconds", "Time in the queue.", SECONDS)
        self._first = family(
            "vllm:time_to_first_token_seconds", "Time to the first token of a stream.", SECONDS
        )
        self._between = family(
            "vllm:inter_token_latency_seconds",
            "Mean time between tokens of a stream.",
            STEP_SECONDS,
        )
        self._whole = family("vllm:e2e_request_latency_seconds", "Time of a request.", SECONDS)
        self._prompt = family("vllm:prompt_tokens", "Source tokens.")
        self._generated = family("vllm:generation_tokens", "Generated tokens.")
        self._success = family(
            "vllm:request_success",
            "Requests by how they ended.",
            labels=["model_name", "finished_reason"],
        )
        self._rejected = family("transduce:requests_rejected", "Requests answered with 429.")
        self._http = family(
            "transduce:http_responses", "HTTP responses.", labels=["method", "status"]
        )
        self._sessions = Gauge(
            "transduce:live_sessions", "Live sessions that are open.", registry=registry
        )
        self._capacity = Gauge(
            "transduce:live_capacity",
            "Live sessions that recognition keeps up with, as measured.",
            registry=registry,
        )
        self._live_audio = family(
            "transduce:live_audio_seconds", "Audio of live sessions that ended."
        )
        self._lag = family(
            "transduce:live_lag_seconds",
            "Time from the arrival of live audio to the end of its recognition.",
            SECONDS,
        )
        for name in models:  # there at 0 from the start
            for counter in (self._prompt, self._generated, self._rejected, self._live_audio):
                counter.counts[name,] = 0
            for reason in REASONS:
                self._success.counts[name, reason] = 0
            for histogram in (self._queue, self._first, self._between, self._whole, self._lag):
                histogram.histogram(name)

    def watch(
        self,
        running: Callable[[], int],
        waiting: Callable[[], int],
        queued: Callable[[], float],
        sessions: Callable[[], int],
        capacity: Callable[[], float],
    ) -> None:
        """Read the gauges when they are asked for."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)
        self._queued.set_function(queued)
        self._sessions.set_function(sessions)
        self._capacity.set_function(capacity)

    def rejected(self, model: str) -> None:
        self._rejected.counts[model,] += 1

    def count_live_audio(self, model: str, seconds: float) -> None:
        """A live session has ended."""
        self._live_audio.counts[model,] += seconds

    def live_lag(self, model: str, seconds: float) -> None:
        self._lag.histogram(model).observe(seconds)

    def responded(self, method: str, status: int) -> None:
        values = (method if method in METHODS else "other", str(status))
        self._http.counts[values] = self._http.counts.get(values, 0) + 1

    def closed(self, job: Job) -> None:
        """A request has ended: with an output, an error, or because its client went away."""
        name = job.served.name
        reason = "abort" if job.cancelled else "error" if job.error else "stop"
        self._success.counts[name, reason] += 1
        if job.started is not None:
            self._queue.histogram(name).observe(job.started - job.arrived)
        if job.ended is None or job.error is not None:
            return
        self._whole.histogram(name).observe(job.ended - job.arrived)
        generated = 0
        for output in job.outputs:
            if output is not None:
                generated += len(output.tokens)
                self._prompt.counts[name,] += len(output.source_tokens)
        self._generated.counts[name,] += generated
        if job.first_token is not None and job.last_token is not None:
            self._first.histogram(name).observe(job.first_token - job.arrived)
            if generated > 1:
                each = (job.last_token - job.first_token) / (generated - 1)
                self._between.histogram(name).observe(each)

    def text(self) -> bytes:
        return generate_latest(self.registry)


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
