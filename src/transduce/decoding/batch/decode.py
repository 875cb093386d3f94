"""Batched decoding: many sources of any length, in batches of bounded memory, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.decoding.batch.token_budget import pack, pack_evenly
from transduce.decoding.batch.workers import Found, run_in_workers, shares, worth_forking
from transduce.decoding.constraints.constraint import (
    AllowedTokens,
    Constraint,
    Coverage,
    Exclude,
    MinLength,
    NoRepeat,
    OpenEnd,
    Prefix,
)
from transduce.decoding.constraints.hotwords import Hotwords, HotwordTree
from transduce.decoding.constraints.include import Include
from transduce.decoding.cpu.pool import CpuSearch, decode_batch, has_search_in_c
from transduce.decoding.cuda.pool import CudaSearch
from transduce.decoding.search import greedy as search
from transduce.decoding.search.beam import beam
from transduce.decoding.search.continuous_batching import Job, Pools, Search
from transduce.decoding.search.hypothesis import Hypothesis, penalty
from transduce.decoding.search.observer import SearchObserver
from transduce.decoding.search.stepper import Stepper
from transduce.decoding.settings import Settings
from transduce.errors import ModelError
from transduce.runtime.transformer import CTransformerSteps

# Batch size in token positions: hypotheses x (source + target). In a Transformer of 6 layers and
# width 512, the KV cache of each takes about 24 kB in float32.
PLACES = 1 << 16
BYTES = 24_000  # memory of one position
# On a CPU: what a step reads fits into the caches, sources of a batch have similar lengths, and
# little new memory is allocated.
PLACES_ON_CPU = 1 << 14
CANCELLED = "cancelled"


@dataclass(slots=True)
class Request:
    """One source and the constraints on its output, as ids without special tokens.

    A source of audio is an array of int16 samples.
    """

    source: Sequence[int]
    seed: int = 0
    prefix: Sequence[int] = ()
    include: Sequence[Sequence[Sequence[int]]] = ()
    """The wordings of each required phrase, one of which is enough."""
    exclude: Sequence[Sequence[int]] = ()
    states: int | None = None
    """For audio, its number of encoder states; None: one for each token, and one for END."""
    hotwords: HotwordTree | None = None

    @property
    def length(self) -> int:
        """The number of encoder states of the source."""
        return len(self.source) + 1 if self.states is None else self.states

    @property
    def positions(self) -> int:
        """Those of its encoder states that an output is to cover: all but END's."""
        return len(self.source) if self.states is None else self.states

    @property
    def plain(self) -> bool:
        """Whether it has no constraints."""
        return not (self.prefix or self.include or self.exclude or self.hotwords)

    @property
    def included(self) -> int:
        """The number of tokens of the required phrases together, each in its shortest wording."""
        return sum(min(map(len, phrase)) for phrase in self.include)

    def min_tokens(self, minimum: int) -> int:
        """The minimum number of tokens of an output, without END."""
        if not self.prefix and not self.include:
            return minimum
        return max(len(self.prefix) + self.included, minimum)


@dataclass(frozen=True)
class Bounds:
    """The maximum output length, including END: ratio x source + extra, and never above `capacity`.

    With `maximum`, that many tokens and END instead.
    """

    ratio: float
    extra: int
    capacity: int
    maximum: int | None = None

    def limit(self, request: Request, minimum: int) -> int:
        """The maximum length; constraints raise it up to `capacity`, to be satisfiable."""
        longest = int(request.length * self.ratio) + self.extra
        required = request.min_tokens(minimum)
        if self.maximum is not None:
            longest = max(self.maximum, required) + 1
        elif required:
            longest = max(longest, required + 1 + self.extra)
        return max(1, min(longest, self.capacity))

    def fits(self, request: Request, minimum: int) -> bool:
        return request.min_tokens(minimum) < self.capacity


class FastSearch(Protocol):
    """A search with CUDA graphs."""

    def run(
        self, jobs: Sequence[Job], settings: Search | None = None
    ) -> list[list[Hypothesis]]: ...

    def free(self) -> None: ...


@dataclass(frozen=True)
class BatchDecoder:
    """A model with decoding settings, none of which is None."""

    model: Stepper
    settings: Settings
    bounds: Bounds
    device: torch.device
    allowed: Sequence[int] | None = None
    """The allowed tokens; None: all."""
    vocabulary: int = 0
    silent: Sequence[int] = ()
    """Tokens besides the unknown one that an output's text does not show, such as tags."""
    workers: int = 1
    """Worker processes, on a CPU."""
    fast: FastSearch | None = None
    """The CUDA graph search for requests without constraints, if available."""
    hotword_beam: int = 1
    """The smallest beam of requests with hotwords."""
    prompted: bool = False
    """Whether sources are prompts of a language model; those of a batch have equal lengths."""
    endless: bool = False
    """Whether outputs never end by themselves."""
    state_bytes: int = 0
    """Memory per encoder state besides the KV cache, shared by all hypotheses of a source."""
    observer: SearchObserver | None = None
    """Sees each step, and may cancel requests; not in worker processes."""
    failed: dict[int, str] = field(default_factory=dict)
    """Requests that failed, by index, and why."""

    def run(self, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        """The hypotheses of each request, in order, best first; none where none is possible."""
        if self.device.type == "cpu" and worth_forking(len(requests), self.workers):
            return self._run_in_workers(requests)
        found: list[list[Hypothesis]] = [[] for _ in requests]
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
        return pack_evenly(places, sizes, several, maximum=1.5 * PLACES_ON_CPU)

    def _kind(self, request: Request) -> tuple[int, int]:
        """What requests of one batch must share: the beam size, which required phrases may raise,
        and the length of prompts, which are read in one pass."""
        return self._hypotheses(request), len(request.source) if self.prompted else 0

    def _run_in_workers(self, requests: Sequence[Request]) -> list[list[Hypothesis]]:
        def work(places: list[int]) -> Found:
            alone = replace(self, workers=1, failed={})
            found = alone.run([requests[place] for place in places])
            return [
                [alone.failed.get(number), [[h.tokens, h.score, h.log_probability] for h in of_one]]
                for number, of_one in enumerate(found)
            ]

        dealt = shares([self._places(request) for request in requests], self.workers)
        found: list[list[Hypothesis]] = [[] for _ in requests]
        for places, answers in zip(dealt, run_in_workers(dealt, work), strict=True):
            for place, (why, hypotheses) in zip(places, answers, strict=True):
                found[place] = [Hypothesis(*hypothesis) for hypothesis in hypotheses]
                if why is not None:
                    self.failed[place] = why
        return found

    def _run_fast(
        self,
        places: list[int],
        requests: Sequence[Request],
        found: list[list[Hypothesis]],
    ) -> list[int]:
        """Run the CUDA graph search where it applies; returns the remaining requests."""
        chosen = self.slot_settings
        if self.fast is None or chosen is None:
            return places
        if self.observer is not None and self.observer.wanted:
            return places  # tokens are not known one by one
        plain = [place for place in places if requests[place].plain]
        try:
            every = self.fast.run([self.job(requests[place]) for place in plain], chosen)
        except torch.OutOfMemoryError:
            self.fast.free()
            return places
        for place, hypotheses in zip(plain, every, strict=True):
            found[place] = hypotheses
        return [place for place in places if not requests[place].plain]

    @property
    def slot_settings(self) -> Search | None:
        """The settings of a search by slots; None where it does not apply."""
        settings = self.settings
        shaped = (
            settings.draws
            or settings.groups > 1
            or settings.coverage_penalty
            or settings.no_repeat_ngram
            or settings.ctc_weight
        )
        if shaped or self.allowed is not None or not settings.unknown:
            return None
        # The minimum length includes END here.
        power, minimum = settings.length_penalty or 0.0, settings.min_length + 1
        return Search(settings.hypotheses, settings.nbest, power, minimum, settings.patience)

    @property
    def pools(self) -> Pools | None:
        """Slots that requests may enter while others are decoded; None where there are none."""
        if isinstance(self.fast, CudaSearch):
            self.fast.copy_weights()
            return self.fast
        steps = self.model
        return (
            CpuSearch(steps) if isinstance(steps, CTransformerSteps) and steps.has_slots else None
        )

    def job(self, request: Request) -> Job:
        """A request without constraints, for a search by slots."""
        return Job(request.source, self.bounds.limit(request, self.settings.min_length))

    def possible(self, requests: Sequence[Request]) -> list[int]:
        """Indices of requests whose constraints fit the model; `failed` says why others do not."""
        possible = []
        for place, request in enumerate(requests):
            if self.bounds.fits(request, self.settings.min_length):
                possible.append(place)
            else:
                self.failed[place] = self._too_long()
        return possible

    def _too_long(self) -> str:
        return (
            f"the constraints need a longer output than this model has positions for "
            f"({self.bounds.capacity}, including the end token); shorten them"
        )

    def _places(self, request: Request) -> int:
        """The token positions that one request takes."""
        length = request.length + self.bounds.limit(request, self.settings.min_length)
        beside = -(-request.length * self.state_bytes // BYTES)
        return length * self._hypotheses(request) + beside

    def _hypotheses(self, request: Request) -> int:
        hypotheses = self.settings.hypotheses
        if request.hotwords is not None and not self.settings.draws:
            hypotheses = max(hypotheses, self.hotword_beam)
        # Dynamic beam allocation: a bank for each number of phrase tokens, of one or more each.
        return hypotheses if self.settings.draws else max(hypotheses, 1 + request.included)

    def follow(self, request: Request) -> Iterator[int]:
        """Yield the tokens of one output as they are chosen, the last one END."""
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
        found: list[list[Hypothesis]],
    ) -> None:
        """Decode a batch; out of memory, its halves; a single request that does not fit fails."""
        observer = None
        if self.observer is not None:
            gone = self.observer.cancelled()
            self.failed.update((place, CANCELLED) for place in places if place in gone)
            places = [place for place in places if place not in gone]
            observer = self.observer.of(places)
        if not places:
            return
        try:
            for place, hypotheses in zip(
                places, self._decode([requests[place] for place in places], observer), strict=True
            ):
                found[place] = hypotheses
            if self.observer is not None:
                gone = self.observer.cancelled()
                self.failed.update((place, CANCELLED) for place in places if place in gone)
            return
        except torch.OutOfMemoryError:
            if len(places) == 1:
                length = requests[places[0]].length - 1
                self.failed[places[0]] = (
                    f"{length} tokens do not fit into the device's memory; shorten the source or "
                    f"lower the beam"
                )
                return
        half = len(places) // 2
        self._attempt(places[:half], requests, found)
        self._attempt(places[half:], requests, found)

    def _decode(
        self, requests: Sequence[Request], observer: SearchObserver | None = None
    ) -> list[list[Hypothesis]]:
        settings, power = self.settings, self.settings.length_penalty or 0.0
        chosen = None if observer is not None and observer.wanted else self.slot_settings
        if chosen is not None and all(request.plain for request in requests):
            steps = self.model
            if has_search_in_c(steps, chosen):
                return decode_batch(steps, list(map(self.job, requests)), chosen, observer)
        source, constraints = self.prepare(requests)
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
                observer=observer,
            )
        size = self._hypotheses(requests[0])  # the same for all of a batch
        if size == 1:
            return search.greedy(self.model, *source, power, constraints, observer)
        found = beam(
            self.model,
            *source,
            size,
            settings.nbest,
            power,
            constraints,
            settings.groups,
            settings.diversity,
            observer,
            settings.patience,
        )
        found = self._without_bonus(found, requests)
        return found if settings.groups == 1 else self._filled_up(found, requests, observer)

    def _without_bonus(
        self, found: list[list[Hypothesis]], requests: Sequence[Request]
    ) -> list[list[Hypothesis]]:
        """Hypotheses of a beam in their order, with the scores that the model gives them: search
        has added the bonus of hotwords."""
        power = self.settings.length_penalty or 0.0
        for request, hypotheses in zip(requests, found, strict=True):
            if request.hotwords is None:
                continue
            for one in hypotheses:
                bonus = self.settings.hotword_bonus * request.hotwords.matched(one.tokens)
                one.log_probability -= bonus
                one.score -= bonus / float(penalty(len(one.tokens) + 1, power))
        return found

    def _filled_up(
        self,
        found: list[list[Hypothesis]],
        requests: Sequence[Request],
        observer: SearchObserver | None,
    ) -> list[list[Hypothesis]]:
        """Where groups have found the same, what one beam finds makes up the n-best list."""
        nbest = self.settings.nbest
        short = [place for place, of_one in enumerate(found) if len(of_one) < nbest]
        if not short:
            return found
        ungrouped = replace(self, settings=replace(self.settings, groups=1))
        of_short = None if observer is None else observer.of(short)
        more = ungrouped._decode([requests[place] for place in short], of_short)
        for place, others in zip(short, more, strict=True):
            known = [hypothesis.tokens for hypothesis in found[place]]
            new = [hypothesis for hypothesis in others if hypothesis.tokens not in known]
            filled = [*found[place], *new[: nbest - len(known)]]
            found[place] = sorted(filled, key=lambda hypothesis: -hypothesis.score)
        return found

    def prepare(
        self, requests: Sequence[Request]
    ) -> tuple[tuple[Tensor, Tensor, Tensor], list[Constraint]]:
        """Source, lengths and maximum lengths of a batch, and its constraints."""
        settings, device = self.settings, self.device
        batch = collate([request.source for request in requests], None).to(device)
        lengths_B = batch.source_lengths_B
        limits_B = torch.tensor([self.bounds.limit(r, settings.min_length) for r in requests])
        constraints: list[Constraint] = []
        if self.allowed is not None or not settings.unknown:
            allowed_V = torch.full((self.vocabulary,), self.allowed is None, dtype=torch.bool)
            allowed_V[list(self.allowed or [])] = True
            allowed_V[UNKNOWN] &= settings.unknown
            copies = self.allowed is None
            constraints.append(AllowedTokens(allowed_V.to(device), copies=copies))
        if settings.min_length:
            constraints.append(MinLength(settings.min_length))
        if settings.no_repeat_ngram:
            constraints.append(NoRepeat(settings.no_repeat_ngram))
        if any(request.exclude for request in requests):
            phrases = [request.exclude for request in requests]
            constraints.append(Exclude(phrases, device, (UNKNOWN, *self.silent)))
        if any(request.include for request in requests):
            constraints.append(Include([request.include for request in requests], limits_B, device))
        if any(request.prefix for request in requests):
            constraints.append(Prefix([request.prefix for request in requests], device))
        if any(request.hotwords is not None for request in requests):
            trees = [request.hotwords for request in requests]
            constraints.append(Hotwords(trees, settings.hotword_bonus, device))
        if self.prompted:
            constraints.append(OpenEnd(self.endless))
        if settings.coverage_penalty:
            positions_B = torch.tensor([request.positions for request in requests], device=device)
            constraints.append(Coverage(positions_B, settings.coverage_penalty))
        return (batch.source_BS, lengths_B, limits_B), constraints
