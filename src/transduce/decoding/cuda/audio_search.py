"""Search of audio on a GPU: pools of slots over a copy of the network in bfloat16."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
from torch import Tensor

from transduce.data.audio.corpus import Wave
from transduce.data.tokens.tokenizer import BEGIN
from transduce.decoding.cuda.audio_beam import AudioBeamSlots
from transduce.decoding.cuda.audio_slots import AudioSlots, TokenRules
from transduce.decoding.cuda.pool import power_of_2, room
from transduce.decoding.search.continuous_batching import Job, Search, Shape, positions_of, shape_of
from transduce.decoding.search.hypothesis import Hypothesis
from transduce.models.decoders import TransformerDecoder
from transduce.models.hooks import copy_for_search
from transduce.models.memory import Memory
from transduce.models.speech import SpeechEncoderDecoder
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.torch_private import copy_all

MOST = 128  # slots of a pool
FEWER = 8  # part of a pool that the last recordings take, which then move to a smaller one
MAX_POOLS = 8
STEP = 64  # sizes of slots are multiples of it

EncodeWaves = Callable[[Sequence[Wave]], Memory]
"""Waves to the encoder's states on the device."""


def has_audio_search(network: SpeechEncoderDecoder) -> bool:
    """Whether its decoder's steps can be recorded as CUDA graphs: an unchanged Transformer, on a
    GPU; the encoder may be any."""
    if not next(network.parameters()).is_cuda or not network.as_built:
        return False
    if not isinstance(network.decoder, TransformerDecoder):
        return False
    attentions = [m for m in network.decoder.modules() if isinstance(m, MultiHeadAttention)]
    return all(one.inner == one.width and one.relative is None for one in attentions)


@dataclass
class AudioSearch:
    """A copy of the network, and pools with their CUDA graphs, kept between calls."""

    network: SpeechEncoderDecoder
    precision: torch.dtype = torch.float32
    _pools: dict[tuple[object, Shape], AudioSlots | AudioBeamSlots] = field(default_factory=dict)
    turn: threading.RLock = field(default_factory=threading.RLock, repr=False)
    """Held by the thread that uses the pools; others wait."""

    def __post_init__(self) -> None:
        with torch.inference_mode(False):  # its weights are written to in either mode
            self.copy = copy_for_search(self.network).to(self.precision).eval()
        self.copy.requires_grad_(False)
        self._copied: list[Tensor] = list(self.copy.parameters())
        self.max_target = positions_of(self.network.decoder.embedding)
        self.rules: dict[object, TokenRules] = {}
        """Those of recorded graphs, whose values must stay where they are."""

    def copy_weights(self) -> None:
        with torch.no_grad():
            copy_all(self._copied, list(self.network.parameters()))

    def pool(self, shape: Shape, rules: TokenRules | None) -> AudioSlots | AudioBeamSlots:
        """A pool of this shape, or of fewer slots where there is no memory for them."""
        if (rules, shape) not in self._pools:
            most = power_of_2(room(self.copy) // (shape.source + shape.beam * shape.target))
            shape = replace(shape, slots=min(shape.slots, most))
        pool = self._pools.pop((rules, shape), None)
        if pool is None:
            for old in [*self._pools][: max(0, len(self._pools) - MAX_POOLS + 1)]:
                self._pools.pop(old).free()
            kind = AudioSlots if shape.beam == 1 else AudioBeamSlots
            pool = kind(self.copy, shape, rules)
        self._pools[rules, shape] = pool  # the most recently used comes last
        return pool

    def free(self) -> None:
        """Free the memory of all pools."""
        with self.turn:
            for pool in self._pools.values():
                pool.free()
            self._pools.clear()
        torch.cuda.empty_cache()


@dataclass
class AudioTask:
    """A search, the encoder's states it reads, and what goes before an output."""

    search: AudioSearch
    encode: EncodeWaves
    prompt: Sequence[int] = (BEGIN,)
    rules: TokenRules | None = None

    def run(self, jobs: Sequence[Job], settings: Search | None = None) -> list[list[Hypothesis]]:
        """The hypothesis of each job, in order; a job's source is a wave."""
        with self.search.turn:
            return self._run(jobs, settings or Search())

    def _run(self, jobs: Sequence[Job], settings: Search) -> list[list[Hypothesis]]:
        self.search.copy_weights()
        found: list[list[Hypothesis]] = [[] for _ in jobs]
        classes: dict[tuple[int, int], list[int]] = {}
        for place, job in enumerate(jobs):
            classes.setdefault(self._size_of(job), []).append(place)
        for (source, target), places in sorted(classes.items(), reverse=True):
            slots = min(MOST, 1 << (len(places) - 1).bit_length())
            shape = shape_of(settings, slots, (source, target))
            self._work(self.search.pool(shape, self.rules), jobs, places, found)
        return found

    def free(self) -> None:
        self.search.free()

    def _size_of(self, job: Job) -> tuple[int, int]:
        """The encoder states and tokens of the slots that a job takes, of few different sizes."""
        states = self.search.network.states_of(len(job.source))
        tokens = len(self.prompt) + job.limit - 1  # END is not read again
        source, target = (-(-count // STEP) * STEP for count in (states, tokens))
        return source, min(target, max(tokens, self.search.max_target))

    def _work(
        self,
        pool: AudioSlots | AudioBeamSlots,
        jobs: Sequence[Job],
        places: list[int],
        found: list[list[Hypothesis]],
    ) -> None:
        """Continuous batching: new recordings enter when a quarter of the slots is free."""
        waiting = sorted(places, key=lambda place: -len(jobs[place].source))
        free = list(range(pool.shape.slots))
        held: dict[int, int] = {}
        while waiting or held:
            if waiting and (not held or 4 * len(free) >= pool.shape.slots):
                count = min(len(free), len(waiting))
                entering, waiting = waiting[:count], waiting[count:]
                slots, free = free[:count], free[count:]
                memory = self.encode([cast(Wave, jobs[place].source) for place in entering])
                pool.fill_with(
                    slots, memory, self.prompt, [jobs[place].limit for place in entering]
                )
                held |= dict(zip(slots, entering, strict=True))
            if not waiting and 0 < FEWER * len(held) <= pool.shape.slots:
                # The few whose outputs are long: steps of a smaller pool take less time.
                shape = replace(pool.shape, slots=pool.shape.slots // FEWER)
                fewer = self.search.pool(shape, self.rules)
                if fewer.shape.slots >= len(held):  # else there is no memory for it
                    fewer.move_from(pool, [*held])  # type: ignore[arg-type]  # of the same kind
                    pool, held = fewer, dict(enumerate(held.values()))
            working = pool.go()
            ended = [slot for slot in held if not working[slot]]
            if ended:
                for slot, hypotheses in zip(ended, pool.take(ended), strict=True):
                    found[held.pop(slot)] = hypotheses
                free += ended
