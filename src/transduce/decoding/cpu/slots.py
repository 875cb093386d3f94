"""Continuous batching on a CPU: sentences enter and leave while others are decoded, in C.

A step costs what its rows cost, so a pool may have more slots than sentences. The hypotheses are
those of search/greedy.py and search/beam.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.constraints.constraint import NEVER
from transduce.decoding.search.greedy import best, penalty
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

SIZES = (8, 64)  # slots of a pool
PLACES = 1 << 16  # rows x positions of one pool, about: its KV cache takes memory


class CpuSlots(SlotSearch):
    """A pool of slots, and the step that advances those with work."""

    def __init__(self, steps: CTransformerSteps, shape: Shape) -> None:
        super().__init__(shape, torch.device("cpu"))
        self.steps = steps
        self.caches = CTransformerSlots(steps, shape.slots, shape.beam, shape.source, shape.target)
        if shape.beam > 1:
            self.origin_RT = self.caches.origins_RT[:, 1:]

    def fill(self, slots: list[int], jobs: Sequence[Job]) -> None:
        """Put new sentences into these slots."""
        batch = collate([job.source for job in jobs], None)
        slots_B = torch.tensor(slots)
        self.caches.fill(slots_B, self.steps.encode(batch.source_BS, batch.source_lengths_B))
        limits_B = torch.tensor([job.limit for job in jobs])
        self._reset(slots_B, batch.source_lengths_B, limits_B, BEGIN)

    def go(self) -> list[bool]:
        """Advance by a step; whether each slot still has work."""
        if self.shape.beam == 1:
            self._greedy_step()
        else:
            self._beam_step()
        working: list[bool] = self.open_B.tolist()
        return working

    def _report(self, slots: list[int]) -> NDArray[np.float64]:
        values_BN3 = torch.stack(
            [torch.zeros_like(self.ended_BN[slots]), self.ended_BN[slots], self.total_BN[slots]],
            dim=2,
        )
        return torch.cat([values_BN3.double(), self.ended_BNT[slots].double()], dim=2).numpy()

    # ------------------------------------------------------------------------------- one step

    def _log_probs(self, rows_R: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities_RV of the next token of these rows, NEVER where it is not allowed, and
        the step of each row."""
        steps_R = self.steps_R[rows_R].long()
        log_probs_RV = self.caches.step(self.tokens_R[rows_R], rows_R, steps_R)
        log_probs_RV[:, PAD : BEGIN + 1 : BEGIN - PAD] = NEVER  # both in one call
        size_R = steps_R + 1
        if self.shape.least > 1:
            log_probs_RV[:, END].masked_fill_(size_R < self.shape.least, NEVER)
        last_R = size_R >= self.limits_B[rows_R // self.shape.beam]
        if bool(last_R.any()):
            ending_R = log_probs_RV[last_R, END]
            log_probs_RV[last_R] = NEVER
            log_probs_RV[last_R, END] = ending_R
        return log_probs_RV, steps_R

    def _greedy_step(self) -> None:
        open_R = self.open_B.nonzero().squeeze(1)
        log_probs_RV, steps_R = self._log_probs(open_R)
        score_R1, token_R1 = best(log_probs_RV, 1)
        score_R, token_R = score_R1.squeeze(1), token_R1.squeeze(1)
        reached_R = self.reached_BN[open_R, 0] + score_R
        self.reached_BN[open_R, 0] = reached_R
        self.written_BNT[open_R, 0, steps_R] = token_R
        self.tokens_R[open_R] = token_R
        self.steps_R[open_R] += 1
        # A row ends where nothing is allowed, too: weights may be no numbers.
        ends_R = (token_R == END) | ~(score_R > NEVER)
        if bool(ends_R.any()):
            ended_R, total_R = open_R[ends_R], reached_R[ends_R]
            length_R = steps_R[ends_R] + 1
            self.ended_BN[ended_R, 0] = total_R / penalty(length_R, self.shape.length_penalty)
            self.total_BN[ended_R, 0] = total_R
            self.open_B[ended_R] = False

    def _beam_step(self) -> None:
        live_BN = (self.reached_BN > NEVER) & self.open_B[:, None]
        live_R = live_BN.flatten().nonzero().squeeze(1)
        log_probs_RV, _ = self._log_probs(live_R)
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
        return CpuSlots(self.steps, shape)
