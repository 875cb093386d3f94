"""Metrics in Prometheus format, under the names that dashboards for vLLM know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from transduce.serving.jobs import Job

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STEP_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


REASONS = ("stop", "error", "abort")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")


class OfModel(NamedTuple):
    """The counters and histograms of one model."""

    queue: Histogram
    first: Histogram
    between: Histogram
    whole: Histogram
    prompt: Counter
    generated: Counter
    rejected: Counter
    ended: dict[str, Counter]


class Metrics:
    """Counters of one server, in a registry of their own."""

    def __init__(self, models: Sequence[str]) -> None:
        self.registry = registry = CollectorRegistry()
        label = ["model_name"]

        def histogram(name: str, about: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, about, label, buckets=buckets, registry=registry)

        def counter(name: str, about: str, labels: Sequence[str] = label) -> Counter:
            return Counter(name, about, labels, registry=registry)

        self._running = Gauge(
            "vllm:num_requests_running", "Requests that are being decoded.", registry=registry
        )
        self._waiting = Gauge(
            "vllm:num_requests_waiting", "Requests that are waiting.", registry=registry
        )
        self._queued = Gauge(
            "transduce:seconds_queued", "Time that the waiting work will take.", registry=registry
        )
        self._queue = histogram("vllm:request_queue_time_seconds", "Time in the queue.", SECONDS)
        self._first = histogram(
            "vllm:time_to_first_token_seconds", "Time to the first token of a stream.", SECONDS
        )
        self._between = histogram(
            "vllm:inter_token_latency_seconds",
            "Mean time between tokens of a stream.",
            STEP_SECONDS,
        )
        self._whole = histogram("vllm:e2e_request_latency_seconds", "Time of a request.", SECONDS)
        self._prompt = counter("vllm:prompt_tokens", "Source tokens.")
        self._generated = counter("vllm:generation_tokens", "Generated tokens.")
        self._success = counter(
            "vllm:request_success", "Requests by how they ended.", ["model_name", "finished_reason"]
        )
        self._rejected = counter("transduce:requests_rejected", "Requests answered with 429.")
        self._http = counter("transduce:http_responses", "HTTP responses.", ["method", "status"])
        # Looked up once, and there at 0 from the start.
        self._of = {
            name: OfModel(
                self._queue.labels(name),
                self._first.labels(name),
                self._between.labels(name),
                self._whole.labels(name),
                self._prompt.labels(name),
                self._generated.labels(name),
                self._rejected.labels(name),
                {reason: self._success.labels(name, reason) for reason in REASONS},
            )
            for name in models
        }
        self._responses: dict[tuple[str, int], Any] = {}

    def watch(
        self,
        running: Callable[[], int],
        waiting: Callable[[], int],
        queued: Callable[[], float],
    ) -> None:
        """Read the gauges when they are asked for."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)
        self._queued.set_function(queued)

    def rejected(self, model: str) -> None:
        self._of[model].rejected.inc()

    def responded(self, method: str, status: int) -> None:
        counter = self._responses.get((method, status))
        if counter is None:
            known = method if method in METHODS else "other"
            counter = self._http.labels(known, str(status))
            self._responses[known, status] = counter
        counter.inc()

    def closed(self, job: Job) -> None:
        """A request has ended: with an output, an error, or because its client went away."""
        of = self._of[job.served.name]
        of.ended["abort" if job.cancelled else "error" if job.error else "stop"].inc()
        if job.started is not None:
            of.queue.observe(job.started - job.arrived)
        if job.ended is None or job.error is not None:
            return
        of.whole.observe(job.ended - job.arrived)
        outputs = [output for output in job.outputs if output is not None]
        generated = sum(len(output.tokens) for output in outputs)
        of.prompt.inc(sum(len(output.source_tokens) for output in outputs))
        of.generated.inc(generated)
        if job.first_token is not None and job.last_token is not None:
            of.first.observe(job.first_token - job.arrived)
            if generated > 1:
                of.between.observe((job.last_token - job.first_token) / (generated - 1))

    def text(self) -> bytes:
        return generate_latest(self.registry)
