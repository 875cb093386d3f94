"""Search on a GPU with CUDA graphs: pools of slots over a copy of the network in bfloat16."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from transduce.decoding.cuda.slots import Slots
from transduce.decoding.search.continuous_batching import Job, Search, Shape, SlotSizes, shape_of
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.models import EncoderDecoder
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoders import TransformerEncoder
from transduce.models.hooks import copy_for_search
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.torch_private import copy_all

MAX_PLACES = 2**20  # rows x positions of one pool
SHARE = 4  # a pool takes at most one part in SHARE of the free memory
MAX_POOLS = 8


def has_cuda_search(network: EncoderDecoder) -> bool:
    """Whether its steps can be recorded as CUDA graphs: unchanged Transformers, on a GPU."""
    if not next(network.parameters()).is_cuda or not network.as_built:
        return False
    if not network.source_end:
        return False
    attentions = [m for m in network.modules() if isinstance(m, MultiHeadAttention)]
    if any(one.inner != one.width or one.relative is not None for one in attentions):
        return False  # pruned: places of layers are not alike
    transformers = (TransformerEncoder, TransformerDecoder)
    return all(isinstance(part, transformers) for part in (network.encoder, network.decoder))


@dataclass
class CudaSearch:
    """Greedy and beam search over slots; pools and their CUDA graphs are kept between calls.

    The weights are copied into the search network at every call: on a GPU that takes less time
    than checking whether they have changed.
    """

    network: EncoderDecoder
    precision: torch.dtype = torch.float32
    _pools: dict[Shape, Slots] = field(default_factory=dict)
    turn: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Held by the thread that uses the pools; others wait."""

    def __post_init__(self) -> None:
        with torch.inference_mode(False):  # its weights are written to in either mode
            self._copy = copy_for_search(self.network).to(self.precision).eval()
        self._copy.requires_grad_(False)
        self._copied: list[Tensor] = list(self._copy.parameters())
        self.sizes = SlotSizes(self.network)

    def run(self, jobs: Sequence[Job], settings: Search | None = None) -> list[list[Hypothesis]]:
        """The hypotheses of each job, in order, best first."""
        with self.turn:
            return self._run(jobs, settings or Search())

    def _run(self, jobs: Sequence[Job], settings: Search) -> list[list[Hypothesis]]:
        self.copy_weights()
        found: list[list[Hypothesis]] = [[] for _ in jobs]
        classes: dict[tuple[int, int], list[int]] = {}
        for place, job in enumerate(jobs):
            classes.setdefault(self.sizes.of(job), []).append(place)
        # The longest first: out of memory shows at once.
        for size, places in sorted(classes.items(), reverse=True):
            pool = self.pool_for(len(places), size, settings)
            assert pool is not None
            _work(pool, jobs, places, found)
        return found

    def takes(self, settings: Search) -> bool:
        """Whether it has a search with these settings: with all."""
        return True

    def pool_for(
        self, jobs: int, size: tuple[int, int], settings: Search, busy: Sequence[Slots] = ()
    ) -> Slots | None:
        """A pool for so many jobs of a size; None where that is one of the busy ones.

        Busy ones are not freed to make room for it.
        """
        wanted = next((count for count in (1, 8, 64) if jobs <= count), 512)
        shape = shape_of(settings, wanted, size)
        if shape not in self._pools:
            most = power_of_2(room(self._copy) // (shape.beam * size[1] + size[0]))
            shape = replace(shape, slots=min(wanted, most))
        if any(pool.shape == shape for pool in busy):
            return None
        return self._pool(shape, busy)

    def copy_weights(self) -> None:
        with torch.no_grad():
            copy_all(self._copied, list(self.network.parameters()))

    def free(self) -> None:
        """Free the memory of all pools."""
        with self.turn:
            for pool in self._pools.values():
                pool.free()
            self._pools.clear()
        torch.cuda.empty_cache()

    def _pool(self, shape: Shape, busy: Sequence[Slots]) -> Slots:
        pool = self._pools.pop(shape, None)
        if pool is None:
            idle = [one for one in self._pools if self._pools[one] not in busy]
            for old in idle[: max(0, len(self._pools) - MAX_POOLS + 1)]:
                self._pools.pop(old).free()
            pool = Slots(self._copy, shape)
        self._pools[shape] = pool  # the most recently used comes last
        return pool


def _work(
    pool: Slots, jobs: Sequence[Job], places: list[int], found: list[list[Hypothesis]]
) -> None:
    """Continuous batching: all jobs at these indices through one pool of slots."""
    waiting = sorted(places, key=lambda place: -len(jobs[place].source))
    free = list(range(pool.shape.slots))
    held: dict[int, int] = {}
    while waiting or held:
        # New jobs enter together: each entry costs a pass through the encoder.
        if waiting and (not held or 8 * len(free) >= pool.shape.slots):
            count = min(len(free), len(waiting))
            entering, waiting = waiting[:count], waiting[count:]
            slots, free = free[:count], free[count:]
            pool.fill(slots, [jobs[place] for place in entering])
            held |= dict(zip(slots, entering, strict=True))
        working = pool.go()
        if sum(working) == len(held):
            continue
        ended = [slot for slot in held if not working[slot]]
        for slot, hypotheses in zip(ended, pool.take(ended), strict=True):
            found[held.pop(slot)] = hypotheses
        free += ended


def room(network: EncoderDecoder) -> int:
    """The positions that the KV cache of one pool may hold, in the network's precision."""
    weight = network.head.weight
    if not weight.is_cuda:
        return MAX_PLACES
    assert isinstance(network.decoder, TransformerDecoder)
    width = network.decoder.stack[0].self_attention.width
    bytes_of_place = 2 * width * len(network.decoder.stack) * weight.itemsize
    free, _ = torch.cuda.mem_get_info(weight.device)
    return min(MAX_PLACES, free // SHARE // bytes_of_place)


def power_of_2(count: int) -> int:
    return 1 << max(count.bit_length() - 1, 0)
