"""Continuous batching on a CPU: sentences enter and leave while others are decoded, in C.

A step costs what its rows cost, so a pool may have more slots than sentences. The hypotheses are
those of search/greedy.py and search/beam.py.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.constraints.constraint import NEVER
from transduce.decoding.search.greedy import Hypothesis, best, penalty
from transduce.decoding.search.slots import (
    Job,
    Search,
    Shape,
    SlotSearch,
    positions_of,
    round_up,
    shape_of,
)
from transduce.models import EncoderDecoder
from transduce.runtime.c_slots import CTransformerSlots
from transduce.runtime.c_transformer import CTransformerSteps

AT_ONCE = 0.008  # seconds of steps between two looks at what has arrived: each entry costs time
SIZES = (8, 64)  # slots of a pool
PLACES = 1 << 16  # rows x positions of one pool, about: its KV cache takes memory


class CpuSlots(Protocol):
    """A pool of slots, and the step that advances those with work."""

    shape: Shape

    def fill(self, slots: list[int], jobs: Sequence[Job]) -> None: ...
    def go(self) -> list[bool]: ...
    def take(self, slots: list[int]) -> list[list[Hypothesis]]: ...
    def close(self, slots: list[int]) -> None: ...


class GreedySlots:
    """Greedy search. What a step needs is kept for the rows with work alone, in one tensor each."""

    def __init__(self, steps: CTransformerSteps, shape: Shape) -> None:
        self.steps, self.shape = steps, shape
        self.caches = CTransformerSlots(steps, shape.slots, 1, shape.source, shape.target)
        self._rows: list[int] = []
        """The slots with work; the tensors below are in their order."""
        self._rows_R = self._tokens_R = self._steps_R = self._limits_R = torch.zeros(0).long()
        self._total_R = torch.zeros(0)
        self._shortest = self._longest = self._left = 0
        """Steps of the row with fewest and with most, and those that are left to the nearest
        limit."""
        self._written: dict[int, list[int]] = {}
        self._found: dict[int, list[Hypothesis]] = {}

    def fill(self, slots: list[int], jobs: Sequence[Job]) -> None:
        """Put new sentences into these slots."""
        encode(self.steps, self.caches, slots, jobs)
        new_R = torch.tensor(slots)
        limits_R = torch.tensor([job.limit for job in jobs])
        self._rows += slots
        self._rows_R = torch.cat([self._rows_R, new_R])
        self._tokens_R = torch.cat([self._tokens_R, torch.full_like(new_R, BEGIN)])
        self._steps_R = torch.cat([self._steps_R, torch.zeros_like(new_R)])
        self._limits_R = torch.cat([self._limits_R, limits_R])
        self._total_R = torch.cat([self._total_R, torch.zeros(len(slots))])
        self._measure()
        for slot in slots:
            self._written[slot] = []

    def _measure(self) -> None:
        if self._rows:
            self._shortest, self._longest = int(self._steps_R.min()), int(self._steps_R.max())
            self._left = int((self._limits_R - self._steps_R).min())

    def _keep(self, places: list[int]) -> None:
        """Only the rows at these places go on."""
        place_R = torch.tensor(places, dtype=torch.int64)
        self._rows = [self._rows[place] for place in places]
        self._rows_R, self._tokens_R = self._rows_R[place_R], self._tokens_R[place_R]
        self._steps_R, self._limits_R = self._steps_R[place_R], self._limits_R[place_R]
        self._total_R = self._total_R[place_R]
        self._measure()

    def close(self, slots: list[int]) -> None:
        """What is in these slots is no longer needed."""
        self._keep([place for place, slot in enumerate(self._rows) if slot not in slots])

    def go(self) -> list[bool]:
        """Advance by some steps; whether each slot still has work."""
        until = time.monotonic() + AT_ONCE
        while self._rows:
            self._step()
            if time.monotonic() > until:
                break
        working = [False] * self.shape.slots
        for slot in self._rows:
            working[slot] = True
        return working

    def take(self, slots: list[int]) -> list[list[Hypothesis]]:
        """The hypothesis of the sentences in these slots."""
        return [self._found.pop(slot) for slot in slots]

    def _step(self) -> None:
        log_probs_RV = self.caches.step(self._tokens_R, self._rows_R, self._steps_R, self._longest)
        least = self.shape.least
        early_R = self._steps_R + 1 < least if self._shortest + 1 < least else None
        last_R = self._steps_R + 1 >= self._limits_R if self._left == 1 else None
        restrict(log_probs_RV, early_R, last_R)
        score_R1, token_R1 = best(log_probs_RV, 1)
        score_R, self._tokens_R = score_R1.squeeze(1), token_R1.squeeze(1)
        self._total_R += score_R
        self._steps_R += 1
        self._shortest, self._longest, self._left = (
            self._shortest + 1,
            self._longest + 1,
            self._left - 1,
        )
        tokens = self._tokens_R.tolist()
        for slot, token in zip(self._rows, tokens, strict=True):
            self._written[slot].append(token)
        # NEVER: nothing is allowed, as where weights are no numbers.
        if END in tokens or not bool((score_R > NEVER).all()):
            self._end((score_R > NEVER).tolist())

    def _end(self, allowed: list[bool]) -> None:
        """Some rows have ended, or cannot go on."""
        score_R = self._total_R / penalty(self._steps_R, self.shape.length_penalty)
        going, scores, totals = [], score_R.tolist(), self._total_R.tolist()
        for place, slot in enumerate(self._rows):
            written = self._written[slot]
            if not allowed[place]:
                self._found[slot] = []
            elif written[-1] == END:
                self._found[slot] = [Hypothesis(written[:-1], scores[place], totals[place])]
            else:
                going.append(place)
        self._keep(going)


class BeamSlots(SlotSearch):
    """Beam search."""

    def __init__(self, steps: CTransformerSteps, shape: Shape) -> None:
        super().__init__(shape, torch.device("cpu"))
        self.steps = steps
        self.caches = CTransformerSlots(steps, shape.slots, shape.beam, shape.source, shape.target)
        self.origin_RT = self.caches.origins_RT[:, 1:]

    def fill(self, slots: list[int], jobs: Sequence[Job]) -> None:
        """Put new sentences into these slots."""
        lengths_B = encode(self.steps, self.caches, slots, jobs)
        limits_B = torch.tensor([job.limit for job in jobs])
        self._reset(torch.tensor(slots), lengths_B, limits_B, BEGIN)

    def go(self) -> list[bool]:
        """Advance by some steps; whether each slot still has work."""
        until = time.monotonic() + AT_ONCE
        working: list[bool] = [True]
        while any(working):
            self._step()
            working = self.open_B.tolist()
            if time.monotonic() > until:
                break
        return working

    def _report(self, slots: list[int]) -> NDArray[np.float64]:
        ended_BN, total_BN = self.ended_BN[slots], self.total_BN[slots]
        values_BN3 = torch.stack([torch.zeros_like(ended_BN), ended_BN, total_BN], dim=2)
        return torch.cat([values_BN3.double(), self.ended_BNT[slots].double()], dim=2).numpy()

    def _step(self) -> None:
        live_BN = (self.reached_BN > NEVER) & self.open_B[:, None]
        live_R = live_BN.flatten().nonzero().squeeze(1)
        steps_R = self.steps_R[live_R].long()
        log_probs_RV = self.caches.step(self.tokens_R[live_R], live_R, steps_R, int(steps_R.max()))
        last_R = steps_R + 1 >= self.limits_B[live_R // self.shape.beam]
        restrict(log_probs_RV, steps_R + 1 < self.shape.least, last_R)
        count = min(2 * self.shape.beam, log_probs_RV.shape[1])
        found_RC, token_of_RC = best(log_probs_RV, count)
        scores_RC = found_RC.new_full((live_BN.numel(), count), NEVER)
        token_RC = token_of_RC.new_full((live_BN.numel(), count), PAD)
        scores_RC[live_R], token_RC[live_R] = found_RC, token_of_RC
        self._beam(scores_RC, token_RC)

    def _promising(self, reached_BN: Tensor, mildest_B: Tensor) -> Tensor:
        """Only hypotheses that can still enter the n-best list are extended: each takes time."""
        hopeless_BN = reached_BN / mildest_B[:, None] <= self.ended_BN[:, -1:]
        return reached_BN.masked_fill(hopeless_BN, NEVER)

    def _highest(self, scores_BX: Tensor, count: int) -> tuple[Tensor, Tensor]:
        return best(scores_BX, count)


def encode(
    steps: CTransformerSteps, caches: CTransformerSlots, slots: list[int], jobs: Sequence[Job]
) -> Tensor:
    """Encode the sources of jobs into these slots; their lengths_B."""
    batch = collate([job.source for job in jobs], None)
    memory = steps.encode_in_c(batch.source_BS, batch.source_lengths_B)
    caches.fill(torch.tensor(slots), memory)
    return batch.source_lengths_B


def restrict(log_probs_RV: Tensor, early_R: Tensor | None, last_R: Tensor | None) -> None:
    """Write NEVER where a token is not allowed: rows that may not end yet, and rows that must."""
    log_probs_RV[:, PAD : BEGIN + 1 : BEGIN - PAD] = NEVER  # both in one call
    if early_R is not None:
        log_probs_RV[:, END].masked_fill_(early_R, NEVER)
    if last_R is not None and bool(last_R.any()):
        ending_R = log_probs_RV[last_R, END]
        log_probs_RV[last_R] = NEVER
        log_probs_RV[last_R, END] = ending_R


class CpuSearch:
    """Pools of slots for one feed."""

    def __init__(self, steps: CTransformerSteps) -> None:
        self.steps, network = steps, steps.network
        assert isinstance(network, EncoderDecoder)
        self.max_source = positions_of(network.front)
        self.max_target = positions_of(network.decoder.embedding)

    def size_of(self, job: Job) -> tuple[int, int]:
        """The lengths of source and target of the slots that a job takes."""
        return (
            round_up(len(job.source) + 1, self.max_source),
            round_up(job.limit, self.max_target),
        )

    def limited(self, size: tuple[int, int]) -> tuple[int, int]:
        """The same where there are as many positions."""
        return min(size[0], self.max_source), min(size[1], self.max_target)

    def pool_for(
        self,
        jobs: int,
        size: tuple[int, int],
        settings: Search,
        busy: Sequence[CpuSlots] = (),
    ) -> CpuSlots | None:
        """A pool for so many jobs of a size; None where that is one of the busy ones."""
        wanted = next((count for count in SIZES if jobs <= count), SIZES[-1])
        shape = shape_of(settings, wanted, size)
        most = max(1, PLACES // (shape.beam * size[1] + size[0]))
        shape = shape_of(settings, min(wanted, most), size)
        if any(pool.shape == shape for pool in busy):
            return None
        return (GreedySlots if shape.beam == 1 else BeamSlots)(self.steps, shape)
