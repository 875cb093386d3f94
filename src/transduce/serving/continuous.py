"""Continuous batching: new requests enter while others are being decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transduce.decoding.output import Output
from transduce.serving.batch import Batch
from transduce.serving.jobs import Job, Plan
from transduce.tasks.generate import GenerativeModel

Entry = tuple[Job, int]
MAX_ENTRIES = 10_000  # entries of one batch, after which it comes to its end and another one begins


class ContinuousBatch(Batch):
    """A batch that grows while it is decoded; numbers of sources are places in `entries`."""

    def __init__(
        self,
        plan: Plan,
        entries: list[Entry],
        take: Callable[[ContinuousBatch], list[Entry]],
        deliver: Callable[[ContinuousBatch, list[tuple[Entry, Output]]], None],
    ) -> None:
        """take: more entries, where there are some; deliver: outputs of some."""
        super().__init__(plan, entries)
        self._take, self._deliver = take, deliver
        self._new = list(enumerate(self.entries))
        self._open = set(range(len(self.entries)))

    @property
    def count(self) -> int:
        """The entries without an output."""
        return len(self._open)

    @property
    def cost(self) -> int:
        """The work of the entries without an output."""
        open_entries = (self.entries[place] for place in list(self._open))
        return sum(job.costs[number] for job, number in open_entries)

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
        if not self._new and len(self.entries) < MAX_ENTRIES:
            taken = self._take(self)
            self._new = list(enumerate(taken, start=len(self.entries)))
            self.entries += taken
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
        self._deliver(self, [(self.entries[place], output) for place, output in found])


def joins(job: Job) -> bool:
    """Whether a request may be decoded in a continuous batch: its inputs one by one, with others
    beside them."""
    return job.plan.continuous and job.watched is None and not job.constraints
