"""Search on a GPU with CUDA graphs: pools of slots over a copy of the network in bfloat16."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import cast

import torch
from torch import Tensor

from transduce.data.audio.corpus import Wave
from transduce.data.tokens.tokenizer import BEGIN
from transduce.decoding.cuda.graph_slots import Recorded, Slots, TokenRules
from transduce.decoding.search.continuous_batching import (
    Job,
    Running,
    Search,
    Shape,
    SlotSizes,
    shape_of,
)
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.models import EncoderDecoder
from transduce.models.decoders import TransformerDecoder
from transduce.models.encoder_output import EncoderOutput
from transduce.models.encoders import TransformerEncoder
from transduce.models.hooks import copy_for_search
from transduce.models.speech import SpeechEncoderDecoder
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.torch_private import copy_all

MAX_PLACES = 2**20  # rows x positions of one pool
SHARE = 4  # a pool takes at most one part in SHARE of the free memory
MAX_POOLS = 8
SIZES = (1, 8, 64, 512)  # slots of a pool
MAX_RECORDINGS = 128  # recordings of a pool, which has a power of two
# New jobs enter together, when such a part of the slots is free: each entry costs a pass through
# the encoder.
ENTER, ENTER_AUDIO = 8, 4
FEWER = 8  # part of a pool that the last recordings take, which then move to a smaller one
STEP = 64  # sizes of slots for recordings are multiples of it

EncodeWaves = Callable[[Sequence[Wave]], EncoderOutput]
"""Waves to the encoder's states on the device."""


def has_cuda_search(network: EncoderDecoder) -> bool:
    """Whether its steps can be recorded as CUDA graphs: an unchanged Transformer, on a GPU. The
    encoder of recordings may be any, as it runs outside the graphs."""
    if not next(network.parameters()).is_cuda or not network.as_built:
        return False
    if not network.plain_steps:
        return False
    recorded: list[torch.nn.Module] = [network.decoder]
    if not isinstance(network, SpeechEncoderDecoder):
        if not network.source_end or not isinstance(network.encoder, TransformerEncoder):
            return False
        recorded.append(network.encoder)
    modules = [module for part in recorded for module in part.modules()]
    attentions = [module for module in modules if isinstance(module, MultiHeadAttention)]
    if any(one.inner != one.width or one.relative is not None for one in attentions):
        return False  # pruned: places of layers are not alike
    return isinstance(network.decoder, TransformerDecoder)


@dataclass
class CudaSearch:
    """Greedy and beam search over slots; pools and their CUDA graphs are kept between calls.

    The weights are copied into the search network at every call: on a GPU that takes less time
    than checking whether they have changed. Where they still have the same addresses, it is one
    CUDA graph: launching the kernels one by one takes the host longer than they take.
    """

    network: EncoderDecoder
    precision: torch.dtype = torch.float32
    _pools: dict[tuple[TokenRules | None, Shape], Slots] = field(default_factory=dict)
    turn: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Held by the thread that uses the pools; others wait."""
    rules: dict[object, TokenRules] = field(default_factory=dict)
    """Those of recorded graphs, whose values must stay where they are."""

    def __post_init__(self) -> None:
        with torch.inference_mode(False):  # its weights are written to in either mode
            self.copy = copy_for_search(self.network).to(self.precision).eval()
        self.copy.requires_grad_(False)
        self._copied: list[Tensor] = list(self.copy.parameters())
        # Where the weights are: at each call a walk over all modules would take longer than
        # copying them.
        paths = (path.rpartition(".") for path, _ in self.network.named_parameters())
        # Its own table of parameters, as nn.Module looks through several at each access.
        self._owners = [
            (self.network.get_submodule(owner)._parameters, name) for owner, _, name in paths
        ]
        self._copying = Recorded(self._copy, self.copy)
        self._given: list[tuple[int, torch.dtype]] = []
        self.sizes = SlotSizes(self.network)

    def run(
        self,
        jobs: Sequence[Job],
        settings: Search | None = None,
        audio: AudioTask | None = None,
    ) -> list[list[Hypothesis]]:
        """The hypotheses of each job, in order, best first. audio: of jobs that are recordings."""
        found: list[list[Hypothesis]] = [[] for _ in jobs]
        with self.turn:
            self.copy_weights()
            size_of = self.sizes.of if audio is None else audio.size_of
            # Until the first sentences are encoded, the GPU waits: jobs of the same lengths have
            # one look-up together. The longest first: out of memory shows at once.
            alike: dict[tuple[int, int], list[tuple[int, Job]]] = defaultdict(list)
            for number, job in enumerate(jobs):
                alike[len(job.source), job.limit].append((number, job))
            classes: dict[tuple[int, int], list[tuple[int, Job]]] = defaultdict(list)
            for lengths in sorted(alike, reverse=True):
                classes[size_of(alike[lengths][0][1])] += alike[lengths]
            for size in sorted(classes, reverse=True):
                parts = self._work(classes[size], size, settings or Search(), audio)
                for number, hypotheses in chain.from_iterable(parts):
                    found[number] = hypotheses
        return found

    def _work(
        self,
        waiting: list[tuple[int, Job]],
        size: tuple[int, int],
        settings: Search,
        audio: AudioTask | None,
    ) -> Iterator[list[tuple[int, list[Hypothesis]]]]:
        """Continuous batching: all jobs of a size through one pool of slots; those that end at the
        same time, by their numbers."""
        if audio is None:
            enter, pool = ENTER, self.pool_for(len(waiting), size, settings)
            assert pool is not None
            running = Running(pool, pool.fill)
        else:
            slots = min(MAX_RECORDINGS, 1 << (len(waiting) - 1).bit_length())
            enter, pool = ENTER_AUDIO, self.pool(shape_of(settings, slots, size), audio.rules)
            running = Running(pool, partial(audio.fill, pool))
        limit, entered = max(job.limit for _, job in waiting), 0
        while waiting or running.held:
            if waiting and (not running.held or enter * len(running.free) >= pool.shape.slots):
                waiting = running.enter(waiting)
                entered = len(running.held)
            if audio is not None and not waiting:
                pool, running = self._moved(pool, running)
            elif not waiting and 2 * len(running.held) >= entered:
                # While there are so many, they will not all end in the next few steps.
                pool.launch_ahead(limit)
            yield running.advance()

    def _moved(self, pool: Slots, running: Running) -> tuple[Slots, Running]:
        """The few recordings with long outputs, in a smaller pool: its steps take less time."""
        if not 0 < FEWER * len(running.held) <= pool.shape.slots:
            return pool, running
        fewer = self.pool(replace(pool.shape, slots=pool.shape.slots // FEWER), pool.rules)
        if fewer.shape.slots < len(running.held):  # there is no memory for it
            return pool, running
        fewer.move_from(pool, [*running.held])
        return fewer, Running(fewer, fewer.fill, dict(enumerate(running.held.values())))

    def takes(self, settings: Search) -> bool:
        """Whether it has a search with these settings: with all."""
        return True

    def pool_for(
        self, jobs: int, size: tuple[int, int], settings: Search, busy: Sequence[Slots] = ()
    ) -> Slots | None:
        """A pool for so many sentences of a size; None where that is one of the busy ones.

        Busy ones are not freed to make room for it.
        """
        slots = next((count for count in SIZES if jobs <= count), SIZES[-1])
        shape = self._fitting(shape_of(settings, slots, size), None)
        if any(pool.shape == shape for pool in busy):
            return None
        return self.pool(shape, None, busy)

    def pool(self, shape: Shape, rules: TokenRules | None, busy: Sequence[Slots] = ()) -> Slots:
        """A pool of this shape, or of fewer slots where there is no memory for them."""
        shape = self._fitting(shape, rules)
        pool = self._pools.pop((rules, shape), None)
        if pool is None:
            idle = [one for one in self._pools if self._pools[one] not in busy]
            for old in idle[: max(0, len(self._pools) - MAX_POOLS + 1)]:
                self._pools.pop(old).free()
            pool = Slots(self.copy, shape, rules)
        self._pools[rules, shape] = pool  # the most recently used comes last
        return pool

    def _fitting(self, shape: Shape, rules: TokenRules | None) -> Shape:
        if (rules, shape) in self._pools:
            return shape
        maximum = capacity(self.copy) // (shape.beam * shape.target + shape.source)
        return replace(shape, slots=min(shape.slots, 1 << max(maximum.bit_length() - 1, 0)))

    def copy_weights(self) -> None:
        given = [(weight.data_ptr(), weight.dtype) for weight in self._weights()]
        if given != self._given:  # what was recorded reads the old ones
            self._copying.free()
            self._given = given
        self._copying()

    def _weights(self) -> list[Tensor]:
        return [cast(Tensor, parameters[name]) for parameters, name in self._owners]

    def _copy(self) -> None:
        with torch.no_grad():
            copy_all(self._copied, self._weights())

    def free(self) -> None:
        """Free the memory of all pools."""
        with self.turn:
            for pool in self._pools.values():
                pool.free()
            self._pools.clear()
            self._copying.free()
        torch.cuda.empty_cache()


@dataclass
class AudioTask:
    """A search of recordings: how they are encoded, and what goes before an output."""

    search: CudaSearch
    encode: EncodeWaves
    prompt: Sequence[int] = (BEGIN,)
    rules: TokenRules | None = None

    def run(self, jobs: Sequence[Job], settings: Search | None = None) -> list[list[Hypothesis]]:
        """The hypotheses of each job, in order, best first; a job's source is a wave."""
        return self.search.run(jobs, settings, self)

    def free(self) -> None:
        self.search.free()

    def size_of(self, job: Job) -> tuple[int, int]:
        """The encoder states and tokens of the slots that a job takes, of few different sizes."""
        network = self.search.network
        assert isinstance(network, SpeechEncoderDecoder)
        tokens = len(self.prompt) + job.limit - 1  # END is not read again
        source, target = (
            -(-count // STEP) * STEP for count in (network.states_of(len(job.source)), tokens)
        )
        return source, min(target, max(tokens, self.search.sizes.target))

    def fill(self, pool: Slots, slots: list[int], jobs: Sequence[Job]) -> None:
        """Put new recordings into these slots."""
        memory = self.encode([cast(Wave, job.source) for job in jobs])
        pool.fill_encoded(slots, memory, self.prompt, [job.limit for job in jobs])


def capacity(network: EncoderDecoder) -> int:
    """The positions that the KV cache of one pool may hold, in the network's precision."""
    weight = network.head.weight
    if not weight.is_cuda:
        return MAX_PLACES
    assert isinstance(network.decoder, TransformerDecoder)
    width = network.decoder.stack[0].self_attention.width
    bytes_of_place = 2 * width * len(network.decoder.stack) * weight.itemsize
    free, _ = torch.cuda.mem_get_info(weight.device)
    return min(MAX_PLACES, free // SHARE // bytes_of_place)
