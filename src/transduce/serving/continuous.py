"""Continuous batching: on a GPU new requests enter while others are being decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transduce.decoding.output import Output
from transduce.serving.batch import Batch
from transduce.serving.jobs import RUN, Job, Plan
from transduce.tasks.generate import GenerativeModel

Entry = tuple[Job, int]
# Settings of a run that need all of its hypotheses, or another pass over them.
WHOLE = ("attention", "ensemble", "rerank", "language_model", "mbr")


MOST = 10_000  # entries of one batch, after which it comes to its end and another one begins


class ContinuousBatch(Batch):
    """A batch that grows while it is decoded; numbers of sources are places in `entries`."""

    def __init__(
        self,
        batch: Batch,
        take: Callable[[Plan, float], list[Entry]],
        deliver: Callable[[list[tuple[Entry, Output]]], None],
    ) -> None:
        """take: more entries of a plan, where there are some, given the work that is under way."""
        super().__init__(batch.plan, list(batch.entries))
        self._take, self._deliver = take, deliver
        self._new = list(enumerate(self.entries))
        self._open = set(range(len(self.entries)))

    @property
    def unfinished(self) -> Batch:
        """The entries without an output: an error came between."""
        return Batch(self.plan, [self.entries[place] for place in sorted(self._open)])

    def decode(self) -> bool:
        """Decode until nothing is left; False where the model has no such search."""
        model = self.plan.served.model
        return isinstance(model, GenerativeModel) and model.run_feed(self, **self.plan.settings)

    # ---------------------------------------------------------------- the feed of the model

    def more(self) -> Sequence[tuple[int, str]]:
        if not self._new and len(self.entries) < MOST:
            open_entries = (self.entries[place] for place in self._open)
            under_way = sum(job.costs[number] for job, number in open_entries)
            start = len(self.entries)
            self.entries += self._take(self.plan, under_way)
            self._new = list(enumerate(self.entries))[start:]
            self._open |= {place for place, _ in self._new}
        arrived, self._new = self._new, []
        self._gone |= {place for place, (job, _) in arrived if job.cancelled}
        gone = self.cancelled()
        self._open -= set(gone)
        return [
            (place, job.inputs[number]) for place, (job, number) in arrived if place not in gone
        ]

    def done(self, found: list[tuple[int, Output]]) -> None:
        self._open -= {place for place, _ in found}
        self._deliver([(self.entries[place], output) for place, output in found])


def is_plain(batch: Batch) -> bool:
    """Whether its entries can be decoded one by one, with others beside them."""
    plan = batch.plan
    return (
        plan.call == RUN
        and not batch.watched
        and not any(plan.settings.get(name) for name in WHOLE)
        and not any(job.constraints for job, _ in batch.entries)
    )


def joins(job: Job) -> bool:
    """Whether a request may enter a continuous batch of its plan."""
    return job.watched is None and not job.constraints
