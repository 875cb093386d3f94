"""The engine: requests are admitted, wait for the scheduler to decode them, and are answered.

Outputs are those of `model.run`, whoever the neighbours in a batch are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any

from transduce.decoding.constraints.glossary import with_glossary
from transduce.decoding.output import Output, Score
from transduce.errors import TransduceError
from transduce.serving.batch import Batch
from transduce.serving.errors import (
    BadRequest,
    Overloaded,
    Timeout,
    TooLarge,
    Unready,
)
from transduce.serving.jobs import (
    INSPECT,
    OF_EACH_INPUT,
    PROMPT,
    RUN,
    SCORE,
    Job,
    LastStep,
    Plans,
    PromptScore,
    Result,
    check_list,
    constraints_of,
)
from transduce.serving.limits import Limits
from transduce.serving.live.engine import LiveEngine
from transduce.serving.metrics import Metrics
from transduce.serving.models import Catalogue, Served
from transduce.serving.recordings import Recorded
from transduce.serving.scheduler import Scheduler
from transduce.serving.threads import Threads, post
from transduce.serving.work import WorkEstimate
from transduce.tasks.observer import TokenStep


class Engine:
    """Runs requests on the models of a catalogue. Use it from one event loop."""

    def __init__(
        self,
        catalogue: Catalogue,
        limits: Limits | None = None,
        metrics: Metrics | None = None,
        chunk_ms: float | None = None,
    ) -> None:
        """chunk_ms: of live speech, with models that read in chunks; None: as in their recipes."""
        self.catalogue, self.limits = catalogue, limits or Limits()
        self.metrics = metrics or Metrics(list(catalogue))
        self.live = LiveEngine(catalogue, self.limits, self.metrics, chunk_ms)
        self.draining = False
        """Whether the server is about to stop; what comes in is still decoded."""
        self._work = {name: WorkEstimate.of(one.model) for name, one in catalogue.items()}
        self.threads = Threads(self.limits.seconds)
        """For work that would hold up the event loop."""
        self._plans = Plans(catalogue, self.limits)
        self._scheduler = Scheduler(
            catalogue, self.limits, self.live.turns, self._finish, self._fail
        )
        self._admission = self._scheduler.admission
        self._open: set[Job] = set()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None

    # ------------------------------------------------------------------------------ state

    @property
    def running(self) -> int:
        """Requests that are being decoded."""
        return len(self._open) - self.waiting

    @property
    def waiting(self) -> int:
        """Requests of which nothing has been decoded yet."""
        return sum(1 for job in self._open if job.started is None)

    @property
    def seconds_queued(self) -> float:
        """The time that the work which waits will take, at the speed measured so far."""
        return self._admission.speed.seconds(self._admission.queued)

    # -------------------------------------------------------------------------------- use

    def check(
        self, served: Served, inputs: Sequence[Any], copies: int = 1, **settings: Any
    ) -> None:
        """Raise what `run` and `stream` would raise for so many copies of a request, before
        anything is done for it."""
        job = self._job(served, inputs, settings)
        outputs = copies * len(inputs)
        self.limits.check("outputs", outputs, f"the request asks for {outputs:,} outputs")
        self._check_work(served, copies * sum(job.costs))

    async def run(self, served: Served, inputs: Sequence[Any], **settings: Any) -> list[Output]:
        """What served.model.run returns for these inputs and settings.

        Texts are strings, audio is Recorded. Raises BadRequest, TooLarge, Overloaded, Timeout and
        Unready. Cancelling it frees its place.
        """
        settings = await self.with_glossary(served, inputs, settings)
        return await self._whole(self.submit(served, inputs, settings)) if inputs else []

    async def with_glossary(
        self, served: Served, inputs: Sequence[Any], settings: dict[str, Any]
    ) -> dict[str, Any]:
        """Settings in which a glossary has become phrases that the output of each input must have.
        Raises BadRequest and TooLarge."""
        terms = settings.get("glossary")
        if terms is None:
            return settings
        if served.takes_audio or served.task != "transduce":
            raise BadRequest(f"the model {served.name} takes no glossary; leave it out")
        limits = self.limits
        limits.check("glossary_entries", len(terms), f"glossary has {len(terms):,} terms")
        limits.check("texts", len(inputs), f"the request has {len(inputs):,} inputs")
        for text in inputs:
            limits.check("characters", len(text), f"an input has {len(text):,} characters")
        include, tokens = settings.get("include"), served.model.target_tokens
        try:
            found = await self.threads.run(with_glossary, include, terms, inputs, tokens)
        except TransduceError as error:
            raise BadRequest(str(error)) from None
        others = {name: value for name, value in settings.items() if name != "glossary"}
        return {**others, "include": found}

    async def score(
        self, served: Served, sources: Sequence[str], targets: Sequence[str], attention: bool = True
    ) -> list[Score]:
        """What served.model.score returns: log-probabilities, and attention to the source."""
        if len(sources) != len(targets):
            raise BadRequest(f"there are {len(sources)} inputs, but {len(targets)} targets")
        if not sources:
            return []
        if served.takes_audio or served.task != "transduce":
            raise BadRequest(f"the model {served.name} has no source text and target to align")
        settings = {"attention": True} if attention else {}
        return await self._whole(self.submit(served, sources, settings, targets=targets))

    async def score_prompts(
        self, served: Served, prompts: Sequence[str], top: int
    ) -> list[PromptScore]:
        """The log-probability of each token of prompts, and the likeliest tokens in its place."""
        return await self._whole(self.submit(served, prompts, {"top": top}, call=PROMPT))

    async def inspect(self, served: Served, input: Any, **settings: Any) -> dict[str, Any]:
        """What the page of `transduce look` shows: attention, alternatives, the beam."""
        if isinstance(input, str) and len(input) > self.limits.inspected_characters:
            raise TooLarge(
                f"the input has {len(input):,} characters; the maximum for a look inside the "
                f"model is {self.limits.inspected_characters:,}"
            )
        settings = await self.with_glossary(served, [input], settings)
        found = await self._whole(self.submit(served, [input], settings, call=INSPECT))
        page: dict[str, Any] = found[0].page
        return page

    async def _whole(self, job: Job) -> list[Any]:
        late = self.expire_later(job)
        try:
            return await job.future
        finally:
            late.cancel()
            self.close(job)

    def expire_later(self, job: Job) -> asyncio.TimerHandle:
        """A request fails with Timeout when its time is over, unless the timer is cancelled."""
        return job.loop.call_later(self.limits.seconds, self._expire, job)

    def _expire(self, job: Job) -> None:
        """What is being decoded for it is dropped when it is closed."""
        if not job.future.done():
            seconds = self.limits.seconds
            late = Timeout(f"the request was not done within {seconds:g} s; send less at once")
            job.future.set_exception(late)

    def stream(
        self,
        served: Served,
        input: Any,
        *,
        alternatives: int = 0,
        attention: bool = False,
        **settings: Any,
    ) -> AsyncIterator[TokenStep | LastStep]:
        """The output of one input token by token: greedy search, or sampling with sample=True.

        The last event has the whole output, as `run` gives it with beam=1; the texts of all events
        are the text of the output. attention: of each token to the source, too; alternatives: that
        many of the most likely tokens at each step. It is admitted, or refused, when called.
        """
        if not 0 <= alternatives <= self.limits.alternatives:
            raise BadRequest(
                f"alternatives is {alternatives}; it must be between 0 and "
                f"{self.limits.alternatives}"
            )
        settings = {**settings, "attention": True} if attention else settings
        job = self.submit(served, [input], settings, (alternatives, attention))
        return _Events(self._events(job), lambda: self.close(job))

    async def _events(self, job: Job) -> AsyncGenerator[TokenStep | LastStep]:
        assert job.events is not None
        shown = ""
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    event = await job.events.get()
                    if isinstance(event, Exception):
                        raise event
                    if isinstance(event, LastStep):
                        if event.output.text.startswith(shown):
                            event.text = event.output.text[len(shown) :]
                        yield event
                        return
                    shown += event.text
                    yield event
        except TimeoutError:
            raise Timeout(
                f"the output was not complete within {self.limits.seconds:g} s; set max_length"
            ) from None
        finally:
            self.close(job)

    def stop(self, seconds: float = 30.0) -> None:
        """Finish what is being decoded and end the threads, for so many seconds at most; refuse
        what is waiting."""
        self._stopped = True
        end = time.monotonic() + seconds
        for job in self._scheduler.stop():
            job.fail(Unready("the server is stopping"))
        self.threads.stop()
        self.live.stop(max(0.0, end - time.monotonic()))
        self._scheduler.join(max(0.0, end - time.monotonic()))

    # -------------------------------------------------------------------------- admission

    def submit(self, *request: Any, **more: Any) -> Job:
        """A request that is admitted, with the arguments of `_job`; its future has the outputs.
        Whoever submits it closes it."""
        if self._stopped:
            raise Unready("the server is stopping")
        job = self._job(*request, **more)
        self._check_work(job.served, sum(job.costs))
        self._scheduler.submit(job)
        self._open.add(job)
        return job

    def _job(
        self,
        served: Served,
        inputs: Sequence[Any],
        settings: dict[str, Any],
        watched: tuple[int, bool] | None = None,
        targets: Sequence[str] | None = None,
        call: str = RUN,
    ) -> Job:
        """A request whose settings are right, with its cost. Raises BadRequest and TooLarge."""
        limits, count = self.limits, len(inputs)
        if "tags" in settings and not served.takes_audio:  # texts have them before them
            inputs = self._tagged(served, inputs, settings["tags"])
            settings = {name: value for name, value in settings.items() if name != "tags"}
        plain, constraints = settings, constraints_of(served, settings, count, limits)
        if served.takes_audio:
            constraints = {}
        elif not plain.keys().isdisjoint(OF_EACH_INPUT):
            plain = {name: value for name, value in settings.items() if name not in OF_EACH_INPUT}
        if targets is not None:
            constraints, call = {"target": list(targets)}, SCORE
        plan = self._plans.find(served, plain, watched, call)
        sources = [one.path if isinstance(one, Recorded) else one for one in inputs]
        job = Job(served, sources, plan, constraints, watched, self._now_loop())
        job.costs = self._work[served.name].costs(inputs, plan, constraints, limits)
        return job

    def _tagged(self, served: Served, inputs: Sequence[Any], tags: Any) -> list[str]:
        """Texts with tags before them. Raises BadRequest and TooLarge."""
        check_list("tags", tags, self.limits)
        try:
            return served.model.tagged(inputs, tags)
        except TransduceError as error:
            raise BadRequest(str(error)) from None

    def _check_work(self, served: Served, cost: int) -> None:
        """Raise TooLarge for more work than any request may be, Overloaded for more than just
        now."""
        if self._admission.is_too_much(cost):
            self.metrics.rejected(served.name)
            raise TooLarge(
                f"the request would take longer than the {self.limits.queue_seconds:g} s that one "
                f"may take; send less at once"
            )
        # All that waits is at least what comes before it; that costs no look at each request.
        if not self._admission.excess(cost, self._admission.queued):
            return
        if over := self._admission.excess(cost, self._scheduler.ahead(cost)):
            self.metrics.rejected(served.name)
            raise Overloaded(
                "too much work is waiting; send the request again later",
                retry_after=max(1.0, self._admission.speed.seconds(over)),
            )

    def _now_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        self._loop = loop
        return loop

    def close(self, job: Job) -> None:
        """A request is done, or its client has gone: free its place."""
        if job not in self._open:
            return
        self._open.discard(job)
        if not job.finished or job.rest:  # also where one of its inputs has failed
            job.cancelled = True
            self._scheduler.drop(job)
        self.metrics.closed(job)

    # --------------------------------------------------------- called by the scheduler's threads

    def _finish(self, batch: Batch, outputs: Sequence[Result]) -> None:
        self._work[batch.plan.served.name].learn(batch, outputs)
        self._post(self._deliver, batch, outputs)

    def _fail(self, job: Job, error: Exception) -> None:
        self._post(job.fail, error)

    def _deliver(self, batch: Batch, outputs: Sequence[Result]) -> None:
        now = time.monotonic()
        for (job, place), output in zip(batch.entries, outputs, strict=True):
            job.deliver(place, output, now)

    def _post(self, call: Callable[..., None], *values: Any) -> None:
        assert self._loop is not None
        post(self._loop, call, *values)


class _Events(AsyncIterator[TokenStep | LastStep]):
    """The events of a stream. Closing it frees its place, also where it was never asked for any, as
    for a client that left at once."""

    def __init__(
        self, events: AsyncGenerator[TokenStep | LastStep], close: Callable[[], None]
    ) -> None:
        self._events, self._close = events, close

    async def __anext__(self) -> TokenStep | LastStep:
        return await anext(self._events)

    async def aclose(self) -> None:
        await self._events.aclose()
        self._close()
