"""Metrics in Prometheus format, under the names that dashboards for vLLM know."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from transduce.serving.jobs import Job
from transduce.serving.monitoring.tallies import Family

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
        self._heard = family("transduce:live_audio_seconds", "Audio of live sessions that ended.")
        self._lag = family(
            "transduce:live_lag_seconds",
            "Time from the arrival of live audio to the end of its recognition.",
            SECONDS,
        )
        for name in models:  # there at 0 from the start
            for counter in (self._prompt, self._generated, self._rejected, self._heard):
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
    ) -> None:
        """Read the gauges when they are asked for."""
        self._running.set_function(running)
        self._waiting.set_function(waiting)
        self._queued.set_function(queued)
        self._sessions.set_function(sessions)

    def rejected(self, model: str) -> None:
        self._rejected.counts[model,] += 1

    def heard(self, model: str, seconds: float) -> None:
        """A live session has ended."""
        self._heard.counts[model,] += seconds

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
