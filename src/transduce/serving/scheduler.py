"""The scheduler: requests wait in a queue, and threads decode them in batches.

A batch is what is waiting with the same model and settings, up to a bound; there is no timer. Where
the model has such a search, new requests enter a batch while it is decoded (continuous batching).
On a CPU several threads do so side by side, each with its share of the requests. All else is
decoded as a whole, one batch at a time.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence

import torch

from transduce.decoding.output import Output
from transduce.errors import TransduceWarning
from transduce.runtime import share_threads
from transduce.serving.batch import Batch, ContinuousBatch, joins
from transduce.serving.errors import Unready, as_service_error
from transduce.serving.jobs import Job, Plan, Result
from transduce.serving.limits import Limits
from transduce.serving.live.engine import FairLock
from transduce.serving.models import Catalogue
from transduce.serving.work import Admission

Entry = tuple[Job, int]
MAX_THREADS = 4  # that decode side by side
NICE = 5  # how much lower the priority of these threads is than that of the event loop


class Scheduler:
    """Decodes requests in threads of its own."""

    def __init__(
        self,
        catalogue: Catalogue,
        limits: Limits,
        turns: dict[str, FairLock],
        finish: Callable[[Batch, Sequence[Result]], None],
        fail: Callable[[Job, Exception], None],
    ) -> None:
        """finish: called with the outputs of a batch, or of some of its entries; fail: with the
        error of a request. turns: of models with audio, which live sessions use too."""
        self.admission = Admission(limits)
        self._turns, self._finish, self._fail = turns, finish, fail
        self._condition = threading.Condition()
        self._waiting: list[Job] = []
        self._batches: list[Batch] = []
        """What is being decoded, by one thread each."""
        self._since = 0.0
        """When something was last finished, or began after a pause."""
        self._reported: set[str] = set()
        """Models of which it was said that continuous batching failed."""
        self._stopped = False
        self._threads: list[threading.Thread] = []
        on_cpu = all(one.model.device.type == "cpu" for one in catalogue.values())
        self.max_threads = min(MAX_THREADS, torch.get_num_threads()) if on_cpu else 1

    # ------------------------------------------------------------ called by the event loop

    def submit(self, job: Job) -> None:
        """A request that was admitted. Raises Unready where the threads are about to end."""
        with self._condition:
            if self._stopped:
                raise Unready("the server is stopping")
            if len(self._threads) < self.max_threads:
                thread = threading.Thread(target=self._serve, name="decode", daemon=True)
                self._threads.append(thread)
                thread.start()
            job.rest = sum(job.costs)
            self.admission.queued += job.rest
            self._waiting.append(job)
            self._condition.notify()

    def ahead(self, cost: int) -> int:
        """The work that is done before a request of this cost is: requests take turns, so no more
        of each than the request has itself, or than a batch has."""
        maximum = max(cost, math.ceil(self.admission.capacity(on_gpu=False)))
        with self._condition:
            return sum(min(job.rest, maximum) for job in self._waiting)

    def drop(self, job: Job) -> None:
        """A request whose client has gone."""
        with self._condition:
            self.admission.queued -= job.rest
            job.rest, job.next = 0, len(job.costs)
            if job in self._waiting:
                self._waiting.remove(job)
            for batch in self._batches:
                batch.drop(job)

    def stop(self) -> list[Job]:
        """Finish what is being decoded and end the threads; returns what was waiting."""
        with self._condition:
            self._stopped = True
            refused, self._waiting = self._waiting, []
            self._condition.notify_all()
        return refused

    def join(self, seconds: float) -> None:
        """Wait for the threads to end, for so many seconds at most."""
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    # ------------------------------------------------------------------------- the threads

    def _serve(self) -> None:
        _yield_to_others()
        while True:
            with self._condition:
                while (first := self._next()) is None and not self._stopped:
                    self._condition.wait()
                if first is None:
                    return
                batch = self._begin(first)
            if isinstance(batch, ContinuousBatch):
                batch = self._decode_continuously(batch)
            else:
                self._decode(batch)
            with self._condition:
                self._replace(batch)

    def _next(self) -> Job | None:
        """The request that has waited longest, of those that can be decoded now."""
        for job in self._waiting:
            if not self._whole or joins(job):
                return job
        return None

    def _begin(self, first: Job) -> Batch:
        """The batch of a request and of others like it."""
        plan = first.plan
        if joins(first):
            entries = self._entries(plan, self._capacity_beside(plan), self._share(0))
            batch: Batch = ContinuousBatch(plan, entries, self._more, self._some_done)
        else:
            batch = Batch(plan, self._entries(plan, self._capacity(plan)))
        if not self._batches:
            self._since = time.monotonic()
        self._replace(None, batch)
        return batch

    def _replace(self, old: Batch | None, new: Batch | None = None) -> None:
        """A batch is done, another one begins, or both."""
        kept = [one for one in self._batches if one is not old]
        self._batches = kept + ([] if new is None else [new])
        self.admission.decodes(sum(one.cost for one in self._batches))
        share_threads(max(1, len(self._batches)))
        if old is not None:
            self._condition.notify_all()

    @property
    def _whole(self) -> bool:
        """Whether a batch is being decoded as a whole."""
        return any(not isinstance(one, ContinuousBatch) for one in self._batches)

    # --------------------------------------------------------------------- what is decoded

    def _capacity(self, plan: Plan) -> float:
        """The work that a batch may have."""
        return self.admission.capacity(plan.served.model.device.type != "cpu")

    def _capacity_beside(self, plan: Plan) -> float:
        """The same where threads decode side by side: all of them together have as much."""
        return self._capacity(plan) / self.max_threads

    def _share(self, own: int) -> int:
        """How many more inputs a thread may take that has `own` already: all have as many."""
        waiting = sum(len(job.costs) - job.next for job in self._waiting if joins(job))
        open_ones = [one.count for one in self._batches if isinstance(one, ContinuousBatch)]
        threads = max(1, self.max_threads - self._whole)
        return -(-(waiting + sum(open_ones)) // threads) - own

    def _entries(self, plan: Plan, capacity: float, maximum: int | None = None) -> list[Entry]:
        """Inputs that wait: one of each request in turn, so that a long one holds up none.

        maximum: so many at most, and only of requests that may enter a continuous batch."""
        waiting = [job for job in self._waiting if job.plan is plan]
        turn = waiting if maximum is None else [job for job in waiting if joins(job)]
        taken: list[Entry] = []
        now = time.monotonic()
        while turn and (maximum is None or len(taken) < maximum):
            job = turn.pop(0)
            cost = job.costs[job.next]
            if taken and cost > capacity:
                break
            capacity -= cost
            self.admission.queued -= cost
            job.rest -= cost
            taken.append((job, job.next))
            job.next += 1
            job.started = job.started or now
            if job.next < len(job.costs):
                turn.append(job)
        # Those that have had a turn go behind the others, also behind those of other settings.
        served = {job for job, _ in taken}
        left = [job for job in self._waiting if job.next < len(job.costs)]
        self._waiting = [job for job in left if job not in served]
        self._waiting += [job for job in left if job in served]
        return taken

    def _more(self, batch: ContinuousBatch) -> list[Entry]:
        """What may join a continuous batch; nothing where another kind of request is next."""
        with self._condition:
            first = self._next()
            if first is None or first.plan is not batch.plan or not joins(first):
                return []
            capacity = self._capacity_beside(batch.plan) - batch.cost
            share = self._share(batch.count)
            return self._entries(batch.plan, capacity, share) if capacity > 0 and share > 0 else []

    # --------------------------------------------------------------------------- decoding

    def _decode_continuously(self, batch: ContinuousBatch) -> Batch:
        """With new requests as they arrive. Returns the batch that was decoded at last."""
        try:
            if batch.decode():
                return batch
            # This model, or these settings, have no such search; or it has a forward hook just now.
            batch.plan.continuous = batch.plan.served.model.is_watched
        except Exception as error:  # which request it is shows when they are decoded as a whole
            self._tell(batch.plan, error)
        with self._condition:
            while self._whole:
                self._condition.wait()
            rest = batch.unfinished
            self._replace(batch, rest)
        if rest.entries:
            self._decode(rest)
        return rest

    def _tell(self, plan: Plan, error: Exception) -> None:
        """Say once for each model that continuous batching failed."""
        name = plan.served.name
        if name not in self._reported:
            self._reported.add(name)
            message = f"continuous batching of {name} failed; whole batches instead: {error}"
            warnings.warn(message, TransduceWarning, stacklevel=1)

    def _some_done(self, batch: ContinuousBatch, found: list[tuple[Entry, Output]]) -> None:
        part = Batch(batch.plan, [entry for entry, _ in found])
        self._done(part, [output for _, output in found])

    def _decode(self, batch: Batch) -> None:
        served = batch.plan.served
        try:
            with self._turns[served.name] if served.takes_audio else contextlib.nullcontext():
                outputs = batch.run()
        except Exception as error:
            if len(jobs := batch.jobs) > 1:  # find out whose it is: the others are not harmed
                self._decode_one_by_one(batch)
            else:
                self._fail(jobs[0], as_service_error(error))
            return
        self._done(batch, outputs)

    def _decode_one_by_one(self, batch: Batch) -> None:
        parts = [batch.of(job) for job in batch.jobs]
        for part in parts:
            with self._condition:
                self._batches.append(part)  # a client that goes away is found there
            self._decode(part)
            with self._condition:
                self._batches.remove(part)

    def _done(self, batch: Batch, outputs: Sequence[Result]) -> None:
        with self._condition:
            now = time.monotonic()
            self.admission.speed.add(batch.cost, now - self._since)
            self._since = now
        self._finish(batch, outputs)


def _yield_to_others() -> None:
    """A lower priority for this thread, on Linux: where all cores decode, the event loop still
    answers at once."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            lower = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), lower)
