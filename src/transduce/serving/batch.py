"""A batch: inputs of several requests that one call of model.run decodes; or, with continuous
batching, that new requests enter while others are being decoded."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any

from transduce.decoding.output import Output
from transduce.decoding.settings import Settings
from transduce.serving.jobs import (
    INSPECT,
    PROMPT,
    SCORE,
    Inspection,
    Job,
    Plan,
    PromptScore,
    Result,
)
from transduce.serving.threads import post
from transduce.tasks.generate import GenerativeModel
from transduce.tasks.language_model import Continuation, LanguageModel
from transduce.tasks.observer import RunObserver, TokenStep, Watch

Entry = tuple[Job, int]
MAX_ENTRIES = 10_000  # entries of one batch, after which it comes to its end and another one begins
DEFAULT_SEED = Settings().seed
NONE: dict[str, Any] = {
    "prefix": "",
    "include": [],
    "exclude": [],
    "hotwords": [],
    "seed": DEFAULT_SEED,
}


class Batch(RunObserver):
    """Entries are requests with the number of one of their inputs."""

    def __init__(self, plan: Plan, entries: list[Entry]) -> None:
        self.plan, self.entries = plan, entries
        self._gone: frozenset[int] = frozenset(
            place for place, (job, _) in enumerate(entries) if job.cancelled
        )
        self.watched = {
            place: Watch(*job.watched)
            for place, (job, _) in enumerate(entries)
            if job.watched is not None
        }

    @property
    def cost(self) -> int:
        return sum(job.costs[number] for job, number in self.entries)

    @property
    def jobs(self) -> list[Job]:
        return list(dict.fromkeys(job for job, _ in self.entries))

    def of(self, job: Job) -> Batch:
        """The entries of one request."""
        return Batch(self.plan, [entry for entry in self.entries if entry[0] is job])

    def run(self) -> list[Result]:
        """Decode it: in the worker thread."""
        model, settings = self.plan.served.model, dict(self.plan.settings)
        inputs = [job.inputs[number] for job, number in self.entries]
        if self.plan.call == INSPECT:
            return [self._inspect(job, number) for job, number in self.entries]
        if self.plan.call == SCORE:
            targets = [job.constraints["target"][number] for job, number in self.entries]
            return list(model.score(inputs, targets, **settings))
        if self.plan.call == PROMPT:
            assert isinstance(model, LanguageModel)
            return [_scored(model, prompt, settings["top"]) for prompt in inputs]
        if isinstance(model, GenerativeModel):
            settings["observer"] = self
        for name in dict.fromkeys(name for job, _ in self.entries for name in job.constraints):
            settings[name] = [
                job.constraints[name][number] if name in job.constraints else NONE[name]
                for job, number in self.entries
            ]
        return list(model.run(inputs, **settings))

    def _inspect(self, job: Job, number: int) -> Inspection:
        from transduce.inspection.look.collect import collect

        own = {name: values[number] for name, values in job.constraints.items()}
        page = collect(self.plan.served.model, job.inputs[number], **self.plan.settings, **own)
        page["model"] = self.plan.served.name
        return Inspection(page, page["axes"]["target"], page["axes"]["source"])

    # ------------------------------------------------------------- called by the event loop

    def drop(self, job: Job) -> None:
        """A request is cancelled: search drops its rows after the next step."""
        places = {place for place, (one, _) in enumerate(self.entries) if one is job}
        self._gone |= places  # a new set: the worker thread may be reading the old one

    # ----------------------------------------------------------- called by the worker thread

    def cancelled(self) -> Collection[int]:
        return self._gone

    def token(self, source: int, step: TokenStep) -> None:
        job, now = self.entries[source][0], time.monotonic()
        job.first_token = job.first_token or now
        job.last_token = now
        post(job.loop, job.show, step)


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


def _scored(model: LanguageModel, prompt: str, top: int) -> PromptScore:
    ids = model.target_tokens.encode(prompt)
    found_TV = list(model.distributions([Continuation([], ids)])[0]) if ids else []
    pieces = model.target_tokens.pieces
    likeliest = [
        [(pieces([number])[0], float(values_V[number])) for number in (-values_V).argsort()[:top]]
        for values_V in found_TV
    ]
    values = [float(values_V[number]) for number, values_V in zip(ids, found_TV, strict=True)]
    read = model.target_tokens.decode_incremental
    ends = [len(read(ids[:count])) for count in range(len(ids) + 1)]
    lengths = [end - start for start, end in pairwise(ends)]
    return PromptScore(pieces(ids), values, likeliest, lengths)
