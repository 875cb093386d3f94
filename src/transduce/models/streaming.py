"""Streaming encoders: audio in chunks, with what each layer keeps of the past.

Many streams advance together: their caches lie in the rows of a few tensors, one row (a slot) for
each stream. What a stream keeps has the same size however long it is.

    W samples of a waveform   P past states
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.models.encoders import ConformerEncoder, TransformerEncoder
from transduce.models.speech import SpeechNetwork
from transduce.nn.conformer import ConformerBlock
from transduce.nn.positions import ExplicitPositions, Learned
from transduce.nn.speech.subsampling import reach_of
from transduce.nn.transformer import BlockCache, EncoderBlock


@dataclass(frozen=True)
class ChunkShape:
    """How many samples a chunk of audio has."""

    states: int
    step: int
    """Samples from one state to the next."""
    seen: int
    """Samples that one state sees."""

    @property
    def advance(self) -> int:
        """Samples from the beginning of one chunk to that of the next."""
        return self.states * self.step

    @property
    def samples(self) -> int:
        """Samples that the states of a chunk see: its own, and the first of the next chunk."""
        return (self.states - 1) * self.step + self.seen

    def states_in(self, samples: int) -> int:
        """How many states can be computed from so many samples, at most a chunk's."""
        return min(self.states, max(0, (samples - self.seen) // self.step + 1))


def is_streaming(network: SpeechNetwork) -> bool:
    """Whether a network was built to read audio in chunks."""
    return getattr(network.encoder, "chunk_sizes", None) is not None


class EncoderStreams:
    """The encoder of a network, for any number of streams at a time.

    Call it within torch.inference_mode, as the caches are kept from call to call.
    """

    def __init__(self, network: SpeechNetwork, states: int) -> None:
        """states: of one chunk."""
        encoder, front = network.encoder, network.front
        assert isinstance(encoder, ConformerEncoder | TransformerEncoder)
        assert encoder.chunk_sizes is not None
        self.front, self.encoder = front, encoder
        self.blocks: list[EncoderBlock | ConformerBlock] = list(encoder.stack)
        factor = front.subsampling.factor
        seen = (reach_of(factor) - 1) * front.mel.hop + front.mel.frame
        self.shape = ChunkShape(states, factor * front.mel.hop, seen)
        self.past = encoder.chunk_sizes.left_chunks * states
        """States that attention sees before a chunk."""
        self.seen: list[int] = []
        """States so far, of each slot."""
        self._free: list[int] = []
        self._caches: list[BlockCache] = []

    @property
    def device(self) -> torch.device:
        return self.front.mel.window_A.device

    @property
    def max_states(self) -> int | None:
        """How long a stream may become before it must begin anew; None: as long as it likes."""
        positions = None if self.front.positions is None else self.front.positions.positions
        return positions.max_length if isinstance(positions, Learned) else None

    @property
    def bytes(self) -> int:
        """The memory of all caches."""
        tensors = [
            tensor for block_cache in self._caches for tensor in block_cache if tensor is not None
        ]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def open(self) -> int:
        """A slot for a new stream."""
        if not self._free:
            self._grow(max(1, 2 * len(self.seen)))
        slot = self._free.pop()
        self.seen[slot] = 0
        return slot

    def restart(self, slot: int) -> None:
        """Forget the past of a stream: it begins anew."""
        self.seen[slot] = 0

    def close(self, slot: int) -> None:
        self._free.append(slot)
        if len(self._free) == len(self.seen):  # after the last stream nothing is kept
            self.seen, self._free, self._caches = [], [], []

    def encode(
        self,
        slots: Sequence[int],
        samples_BW: Tensor,
        lengths_B: Tensor,
        tags_BG: Tensor | None = None,
    ) -> tuple[Tensor, list[int]]:
        """The states_BTD of the next chunk of each of some streams, and how many are real.

        samples_BW begin with a chunk's first sample; a row with fewer than `shape.samples` of them
        ends its stream. lengths_B is on the CPU.
        """
        counts = [self.shape.states_in(length) for length in lengths_B.tolist()]
        T = max(counts)
        seen_B = torch.tensor([self.seen[slot] for slot in slots])
        positions = None
        if self.front.positions is not None:
            of_BT = seen_B[:, None] + torch.arange(T)
            positions = ExplicitPositions(of_BT.to(self.device), int(seen_B.max()) + T)
        x_BTD, _ = self.front(samples_BW.to(self.device), lengths_B, tags_BG, positions)
        visible_B1S = self._visible(seen_B, torch.tensor(counts), T).to(self.device)
        rows_B = torch.tensor(slots, device=self.device)
        fresh_B = (seen_B == 0).nonzero()[:, 0].to(self.device)
        for block, cache in zip(self.blocks, self._caches, strict=True):
            block_cache = _rows(cache, rows_B, fresh_B)
            x_BTD, kept = _resume(block, x_BTD, block_cache, visible_B1S)
            cache.keys_BP2D.index_copy_(0, rows_B, kept.keys_BP2D[:, T:])
            if cache.frames_BPD is not None and kept.frames_BPD is not None:
                cache.frames_BPD.index_copy_(0, rows_B, kept.frames_BPD)
        for slot, count in zip(slots, counts, strict=True):
            self.seen[slot] += count
        return self.encoder.finished(x_BTD), counts

    def _visible(self, seen_B: Tensor, counts_B: Tensor, T: int) -> Tensor:
        """Keys that are there: caches are filled from their end on, chunks from their beginning."""
        place_S = torch.arange(self.past + T)
        there_BS = place_S >= self.past - seen_B[:, None]
        there_BS &= place_S < self.past + counts_B[:, None]
        return there_BS[:, None]

    def _grow(self, slots: int) -> None:
        weight = next(self.encoder.parameters())
        before = len(self.seen)
        self._free += range(slots - 1, before - 1, -1)
        self.seen += [0] * (slots - before)
        grown = []
        for place, block in enumerate(self.blocks):
            inner = block.self_attention.inner
            sizes = [(slots, self.past, 2 * inner)]
            if isinstance(block, ConformerBlock):
                width: int = block.convolution.contract.in_features
                sizes.append((slots, block.convolution.past, width))
            caches = [weight.new_zeros(size) for size in sizes]
            for cache, old in zip(caches, self._caches[place] if before else (), strict=False):
                if old is not None:
                    cache[:before] = old
            grown.append(BlockCache(*caches))
        self._caches = grown


def _resume(
    block: EncoderBlock | ConformerBlock,
    x_BTD: Tensor,
    block_cache: BlockCache,
    visible_BTS: Tensor,
) -> tuple[Tensor, BlockCache]:
    if isinstance(block, EncoderBlock):
        return block.resume(x_BTD, block_cache, visible_BTS)
    return block.resume(x_BTD, block_cache, visible_BTS)


def _rows(cache: BlockCache, rows_B: Tensor, fresh_B: Tensor) -> BlockCache:
    """The caches of some streams; those of fresh ones are zero: nothing of another stream that had
    the slot before may be seen."""
    keys_BP2D = cache.keys_BP2D.index_select(0, rows_B).index_fill_(0, fresh_B, 0.0)
    if cache.frames_BPD is None:
        return BlockCache(keys_BP2D)
    frames_BPD = cache.frames_BPD.index_select(0, rows_B).index_fill_(0, fresh_B, 0.0)
    return BlockCache(keys_BP2D, frames_BPD)
