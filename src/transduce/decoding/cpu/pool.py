"""Search on a CPU in C: a batch at once, or continuous batching, where sentences enter and leave
while others are decoded.

The hypotheses are those of search/greedy.py and search/beam.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import torch

from transduce.data.batches.batch import collate
from transduce.data.tokens.tokenizer import BEGIN, END, PAD
from transduce.decoding.search.continuous_batching import Job, Search, Shape, SlotSizes, shape_of
from transduce.decoding.search.hypothesis import Hypothesis, penalty
from transduce.decoding.search.observer import SearchObserver
from transduce.models import EncoderDecoder
from transduce.runtime.c_slots import CTransformerSlots
from transduce.runtime.structures import MAX_BEAM
from transduce.runtime.transformer import CTransformerSteps

# Between two looks at what has arrived, so many steps and seconds at least: the encoder takes more
# time for few sentences at once.
AT_ONCE = (4, 0.008)
SIZES = (8, 64)  # slots of a pool
PLACES = 1 << 16  # rows x positions of one pool, about: its KV cache takes memory


class CpuSlots:
    """A pool of slots, and the steps that advance those with work."""

    def __init__(self, steps: CTransformerSteps, shape: Shape) -> None:
        self.steps, self.shape = steps, shape
        self._slots = CTransformerSlots(
            steps,
            shape.slots,
            shape.beam,
            shape.nbest,
            shape.source,
            penalty(torch.arange(shape.target + 2), shape.length_penalty),
            (PAD, BEGIN, END),
            shape.minimum,
            1 if shape.beam == 1 else shape.maximum,
        )

    def fill(self, slots: list[int], jobs: Sequence[Job]) -> None:
        """Put new sentences into these slots."""
        batch = collate([job.source for job in jobs], None)
        memory = self.steps.encode_in_c(batch.source_BS, batch.source_lengths_B)
        limits_B = torch.tensor([job.limit for job in jobs])
        self._slots.fill(torch.tensor(slots), memory, limits_B)

    def launch(self) -> bool:
        return False

    def go(self) -> list[bool]:
        """Advance by some steps; whether each slot still has work."""
        return self._slots.advance(*AT_ONCE)

    def take(self, slots: list[int]) -> list[list[Hypothesis]]:
        """The hypotheses of the sentences in these slots, best first."""
        return [[Hypothesis(*one) for one in each] for each in self._slots.found(slots)]

    def close(self, slots: list[int]) -> None:
        """What is in these slots is no longer needed."""
        self._slots.open_B[slots] = 0


def decode_batch(
    steps: CTransformerSteps,
    jobs: Sequence[Job],
    settings: Search,
    observer: SearchObserver | None = None,
) -> list[list[Hypothesis]]:
    """The hypotheses of each job, best first; all begin together, and none that ends costs more.

    observer: may cancel jobs; none of them is shown its tokens.
    """
    size = max(len(job.source) + 1 for job in jobs), max(job.limit for job in jobs)
    pool = CpuSlots(steps, shape_of(settings, len(jobs), size))
    every = list(range(len(jobs)))
    pool.fill(every, jobs)
    while any(pool.go()):
        if observer is not None and (gone := observer.cancelled()):
            pool.close(list(gone))
    return pool.take(every)


def has_search_in_c(steps: object, settings: Search) -> TypeGuard[CTransformerSteps]:
    """Whether these steps can be searched in C with these settings."""
    if not isinstance(steps, CTransformerSteps) or not steps.has_slots:
        return False
    return max(settings.beam, settings.nbest) <= MAX_BEAM


class CpuSearch:
    """Pools of slots for one feed."""

    def __init__(self, steps: CTransformerSteps) -> None:
        assert isinstance(steps.network, EncoderDecoder)
        self.steps, self.sizes = steps, SlotSizes(steps.network)

    def takes(self, settings: Search) -> bool:
        """Whether it has a search with these settings."""
        return max(settings.beam, settings.nbest) <= MAX_BEAM

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
        maximum = max(1, PLACES // (shape.beam * size[1] + size[0]))
        shape = shape_of(settings, min(wanted, maximum), size)
        if any(pool.shape == shape for pool in busy):
            return None
        return CpuSlots(self.steps, shape)
