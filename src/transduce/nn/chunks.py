"""Chunks: attention that may not see the future, but for the rest of its own chunk.

Zhang et al. 2020 (U2), https://arxiv.org/abs/2012.05481. A sequence is divided into chunks of
equal size; a state sees its own chunk and a bounded number of chunks before it. A model that has
seen chunks of many sizes in training can be used with any of them, and with whole sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from transduce.nn.masks import READABLE, Mask


@dataclass(frozen=True)
class ChunkSizes:
    """The chunk sizes that are drawn in training, in states, and how far back attention sees."""

    minimum: int
    maximum: int
    left_chunks: int
    """How many chunks before its own a state sees."""
    whole: float = 0.5
    """The share of batches that are not divided."""

    def __post_init__(self) -> None:
        if (
            not 1 <= self.minimum <= self.maximum
            or self.left_chunks < 0
            or not 0 <= self.whole <= 1
        ):
            raise ValueError(f"These chunks are not possible: {self}.")

    def draw(self, generator: torch.Generator | None = None) -> int | None:
        """The size of the chunks of a batch, None for whole sequences; drawn on the CPU."""
        share, place = torch.rand(2, generator=generator, dtype=torch.float64).tolist()
        return (
            None
            if share < self.whole
            else self.minimum + int(place * (self.maximum - self.minimum + 1))
        )

    def draw_on(self, device: torch.device, S: int) -> Tensor:
        """The same drawn on a device, without waiting for it; S for whole sequences."""
        share, place = torch.rand(2, dtype=torch.float64, device=device).unbind()
        size = self.minimum + (place * (self.maximum - self.minimum + 1)).long()
        return torch.where(share < self.whole, S, size)


class Chunked(nn.Module):
    """An encoder that can be divided into chunks: of the size that a call asks for, else in
    training as `chunk_sizes` says, and not at all where there are no `chunk_sizes`.
    """

    chunk_sizes: ChunkSizes | None = None

    def chunk_mask(
        self, S: int, mask: Mask | None, device: torch.device, size: int | None = None
    ) -> Mask | None:
        """`mask` and, where the sequence is divided, that of its chunks.

        size: states of a chunk; None: whole sequences, in training drawn. Raises ValueError where
        the encoder was not built for chunks.
        """
        if self.chunk_sizes is None:
            if size is not None:
                raise ValueError("This encoder was not built for chunks.")
            return mask
        drawn: int | Tensor | None = size
        if size is None and self.training:
            sizes = self.chunk_sizes
            drawn = sizes.draw() if device.type in READABLE else sizes.draw_on(device, S)
        if drawn is None:
            return mask
        chunks = Mask(visible_BTS=visible_chunks(S, drawn, self.chunk_sizes.left_chunks, device))
        return chunks if mask is None else mask & chunks


def visible_chunks(
    S: int, size: int | Tensor, left_chunks: int, device: torch.device | str | None = None
) -> Tensor:
    """bool [1, S, S]: whether the state of a row sees that of a column."""
    chunk_S = torch.arange(S, device=device) // size
    back_SS = chunk_S[:, None] - chunk_S
    return ((back_SS >= 0) & (back_SS <= left_chunks))[None]
