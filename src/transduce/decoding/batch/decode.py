"""Many sources of any length through one search: packed, bounded, shaped, in order."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.decoding.batch.workers import Found, shares, together, worth_it
from transduce.decoding.constraints.constraint import (
    AllowedTokens,
    Constraint,
    Coverage,
    Exclude,
    MinLength,
    NoRepeat,
    OpenEnd,
    Prefix,
    Watched,
)
from transduce.decoding.constraints.include import Include
from transduce.decoding.cuda.pool import CudaSearch
from transduce.decoding.cuda.slots import Job
from transduce.decoding.search import greedy as search
from transduce.decoding.search.beam import beam
from transduce.decoding.settings import Settings
from transduce.errors import ModelError

# Places for tokens in one batch: hypotheses x (source + target). Each holds, in a Transformer of
# 6 layers and width 512, about 24 kB of keys and values in float32.
PLACES = 1 << 16
BYTES = 24_000  # that one such place stands for
# On a CPU about so many: what a step reads then stays in its caches, sources of a batch are nearly
# of one length, and fresh memory, slow at first, is rarely asked for.
PLACES_ON_CPU = 1 << 13


@dataclass(slots=True)
class Request:
    """One source, and what is asked of its output, in ids without specials.

    A source of audio is its samples, in an array of 16 bits.
    """

    source: Sequence[int]
    seed: int = 0
    prefix: Sequence[int] = ()
    include: Sequence[Sequence[int]] = ()
    exclude: Sequence[Sequence[int]] = ()
    states: int | None = None
    """Of an audio, how many states it becomes; None: one for each token, and one for END."""

    @property
    def length(self) -> int:
        """States of the source."""
        return len(self.source) + 1 if self.states is None else self.states

    @property
    def plain(self) -> bool:
        """Whether nothing is asked but the best output."""
        return not (self.prefix or self.include or self.exclude)

    @property
    def included(self) -> int:
        """Tokens that the phrases take one after the other."""
        return sum(map(len, self.include))

    def asked(self, least: int) -> int:
        """Tokens that an output has at least, END not counted."""
        if not self.prefix and not self.include:
            return least
        return max(len(self.prefix) + self.included, least)


@dataclass(frozen=True)
class Bounds:
    """The longest output, END counted: ratio x source + extra, and never more than `room`.

    With `most`, so many tokens and END instead.
    """

    ratio: float
    extra: int
    room: int
    most: int | None = None

    def limit(self, request: Request, least: int) -> int:
        """What is asked for has to fit: it raises the limit, up to the room."""
        wished = int(request.length * self.ratio) + self.extra
        asked = request.asked(least)
        if self.most is not None:
            wished = max(self.most, asked) + 1
        elif asked:
            wished = max(wished, asked + 1 + self.extra)
        return max(1, min(wished, self.room))

    def fits(self, request: Request, least: int) -> bool:
        return request.asked(least) < self.room


@dataclass(frozen=True)
class BatchDecoder:
    """A model and how it is to be searched; settings without None."""

    model: search.Stepper
    settings: Settings
    bounds: Bounds
    device: torch.device
    allowed: Sequence[int] | None = None
    """The only tokens to be written; None: all."""
    vocabulary: int = 0
    attention: Watched | None = None
    """What the coverage penalty watches."""
    workers: int = 1
    """Processes that share the requests, on a CPU."""
    fast: CudaSearch | None = None
    """Where there is one, it does what needs no constraints."""
    prompted: bool = False
    """Whether sources are prompts to go on with; those of a batch are then of one length."""
    endless: bool = False
    """Whether no output ends by itself."""
    state_bytes: int = 0
    """What each state of a source takes beside keys and values, however many hypotheses it has."""
    failed: dict[int, str] = field(default_factory=dict)
    """Requests that could not be served, by their place, and why."""

    def run(self, requests: Sequence[Request]) -> list[list[search.Hypothesis]]:
        """The hypotheses of each request, in order, best first; none where there can be none."""
        if self.device.type == "cpu" and worth_it(len(requests), self.workers):
            return self._run_together(requests)
        found: list[list[search.Hypothesis]] = [[] for _ in requests]
        possible = self._run_fast(self.possible(requests), requests, found)
        sizes = [self._places(request) for request in requests]
        kinds = [self._kind(request) for request in requests]
        for kind in sorted(set(kinds)):
            of_kind = [place for place in possible if kinds[place] == kind]
            for places in self._batches(of_kind, sizes):
                self._attempt(places, requests, found)
        return found

    def _batches(self, places: list[int], sizes: list[int]) -> Iterator[list[int]]:
        if self.device.type != "cpu":
            return pack(places, sizes, PLACES)
        several = max(1, round(sum(sizes[place] for place in places) / PLACES_ON_CPU))
        return pack_evenly(places, sizes, several, most=1.5 * PLACES_ON_CPU)

    def _kind(self, request: Request) -> tuple[int, int]:
        """What requests of one batch have in common: a neighbour's phrases must not widen another's
        beam, and prompts are read together."""
        return self._hypotheses(request), len(request.source) if self.prompted else 0

    def _run_together(self, requests: Sequence[Request]) -> list[list[search.Hypothesis]]:
        def work(places: list[int]) -> Found:
            alone = replace(self, workers=1, failed={})
            found = alone.run([requests[place] for place in places])
            return [
                [alone.failed.get(number), [[h.tokens, h.score, h.log_probability] for h in of_one]]
                for number, of_one in enumerate(found)
            ]

        dealt = shares([self._places(request) for request in requests], self.workers)
        found: list[list[search.Hypothesis]] = [[] for _ in requests]
        for places, answers in zip(dealt, together(dealt, work), strict=True):
            for place, (why, hypotheses) in zip(places, answers, strict=True):
                found[place] = [search.Hypothesis(*hypothesis) for hypothesis in hypotheses]
                if why is not None:
                    self.failed[place] = why
        return found

    def _run_fast(
        self,
        places: list[int],
        requests: Sequence[Request],
        found: list[list[search.Hypothesis]],
    ) -> list[int]:
        """What the fast search can do, done; the places that are left."""
        settings = self.settings
        shaped = (
            settings.draws
            or settings.groups > 1
            or settings.coverage_penalty
            or settings.no_repeat_ngram
        )
        if self.fast is None or shaped or self.allowed is not None or not settings.unknown:
            return places
        plain = [place for place in places if requests[place].plain]
        least = settings.min_length
        jobs = [
            Job(requests[place].source, self.bounds.limit(requests[place], least))
            for place in plain
        ]
        power = settings.length_penalty or 0.0
        try:
            # A text of at least so many tokens has its END after them.
            every = self.fast.run(jobs, settings.hypotheses, settings.nbest, power, least + 1)
        except torch.OutOfMemoryError:
            self.fast.free()
            return places
        for place, hypotheses in zip(plain, every, strict=True):
            found[place] = hypotheses
        return [place for place in places if not requests[place].plain]

    def possible(self, requests: Sequence[Request]) -> list[int]:
        """The places of requests whose wishes fit the model; of the others it notes why not."""
        possible = []
        for place, request in enumerate(requests):
            if self.bounds.fits(request, self.settings.min_length):
                possible.append(place)
            else:
                self.failed[place] = self._too_long()
        return possible

    def _too_long(self) -> str:
        return (
            f"what must be in the output is too long for this model, which has positions for "
            f"{self.bounds.room}, the end counted"
        )

    def _places(self, request: Request) -> int:
        """Places that one request takes."""
        length = request.length + self.bounds.limit(request, self.settings.min_length)
        beside = -(-request.length * self.state_bytes // BYTES)
        return length * self._hypotheses(request) + beside

    def _hypotheses(self, request: Request) -> int:
        hypotheses = self.settings.hypotheses
        # A bank each for 0, 1, 2, ... tokens of phrases, with room for one hypothesis or more.
        return hypotheses if self.settings.draws else max(hypotheses, 1 + request.included)

    def follow(self, request: Request) -> Iterator[int]:
        """The tokens of one output as they are chosen, the last one END."""
        if not self.bounds.fits(request, self.settings.min_length):
            raise ModelError(self._too_long())
        settings = self.settings
        source, constraints = self.prepare([request])
        choose: search.Choose = search.best_token
        if settings.draws:
            shape = (settings.temperature, settings.top_k, settings.top_p)
            longest = int(source[2].max())
            choose = search.random_token([request.seed], longest, self.device, 1, *shape)
        for tokens_R in search.follow(self.model, *source, choose, constraints=constraints):
            yield int(tokens_R[0])

    def _attempt(
        self,
        places: list[int],
        requests: Sequence[Request],
        found: list[list[search.Hypothesis]],
    ) -> None:
        """Decode a batch; where memory is short, its halves; what is too long alone is given up."""
        try:
            for place, hypotheses in zip(
                places, self._decode([requests[place] for place in places]), strict=True
            ):
                found[place] = hypotheses
            return
        except torch.OutOfMemoryError:
            if len(places) == 1:
                length = requests[places[0]].length - 1
                self.failed[places[0]] = f"{length} tokens do not fit into the device's memory"
                return
        half = len(places) // 2
        self._attempt(places[:half], requests, found)
        self._attempt(places[half:], requests, found)

    def _decode(self, requests: Sequence[Request]) -> list[list[search.Hypothesis]]:
        settings, power = self.settings, self.settings.length_penalty or 0.0
        source, constraints = self.prepare(requests)
        with contextlib.ExitStack() as watching:
            for part in constraints:
                if isinstance(part, Coverage):
                    watching.enter_context(part)
            if settings.draws:
                return search.sample(
                    self.model,
                    *source,
                    [request.seed for request in requests],
                    copies=settings.draws,
                    temperature=settings.temperature,
                    top_k=settings.top_k,
                    top_p=settings.top_p,
                    length_penalty=power,
                    constraints=constraints,
                )
            size = self._hypotheses(requests[0])  # the same for all of a batch
            if size == 1:
                return search.greedy(self.model, *source, power, constraints)
            groups, diversity = settings.groups, settings.diversity
            return beam(
                self.model, *source, size, settings.nbest, power, constraints, groups, diversity
            )

    def prepare(
        self, requests: Sequence[Request]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], list[Constraint]]:
        """Source, lengths and limits of a batch, and the constraints that its requests need."""
        settings, device = self.settings, self.device
        batch = collate([request.source for request in requests], None).to(device)
        lengths_B = batch.source_lengths_B
        limits_B = torch.tensor([self.bounds.limit(r, settings.min_length) for r in requests])
        constraints: list[Constraint] = []
        if self.allowed is not None or not settings.unknown:
            allowed_V = torch.full((self.vocabulary,), self.allowed is None, dtype=torch.bool)
            allowed_V[list(self.allowed or [])] = True
            allowed_V[UNKNOWN] &= settings.unknown
            constraints.append(AllowedTokens(allowed_V.to(device)))
        if settings.min_length:
            constraints.append(MinLength(settings.min_length))
        if settings.no_repeat_ngram:
            constraints.append(NoRepeat(settings.no_repeat_ngram))
        if any(request.exclude for request in requests):
            constraints.append(Exclude([request.exclude for request in requests], device))
        if any(request.include for request in requests):
            constraints.append(Include([request.include for request in requests], limits_B, device))
        if any(request.prefix for request in requests):
            constraints.append(Prefix([request.prefix for request in requests], device))
        if self.prompted:
            constraints.append(OpenEnd(self.endless))
        if settings.coverage_penalty:
            assert self.attention is not None
            constraints.append(
                Coverage(self.attention, lengths_B.to(device), settings.coverage_penalty)
            )
        return (batch.source_BS, lengths_B, limits_B), constraints


def pack(indices: Sequence[int], sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices in batches, each no larger than `budget` with all padded to its largest, unless it
    is one alone.

    Largest first: what does not fit memory shows at once, not after an hour.
    """
    in_order = sorted(indices, key=lambda i: (-sizes[i], i))
    for cut in cuts([sizes[index] for index in in_order], budget):
        yield in_order[cut]


def pack_evenly(
    indices: Sequence[int],
    sizes: Sequence[int],
    several: int,
    least: int = 1,
    most: float = math.inf,
) -> Iterator[list[int]]:
    """As `pack`, into so many batches of about the same size: into fewer if they were smaller than
    `least`, into more if, padded, they were larger than `most`."""
    largest = sorted((sizes[index] for index in indices), reverse=True)
    total = sum(largest)
    budget = max(least, -(-total // several))
    while budget > most or sum(1 for _ in cuts(largest, budget)) > several:
        budget += -(-budget // 32)  # padding takes room as well
        if budget > most:
            several += 1
            budget = max(least, -(-total // several))
    return pack(indices, sizes, budget)


def cuts(sizes: Sequence[int], budget: int) -> Iterator[slice]:
    """Where `pack` cuts sizes that come largest first."""
    start = 0
    while start < len(sizes):
        stop = start + max(1, budget // max(sizes[start], 1))
        yield slice(start, stop)
        start = stop
