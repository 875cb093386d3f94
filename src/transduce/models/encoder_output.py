"""What an encoder leaves for a decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transduce.nn.masks import Mask, padding, readable, real_positions
from transduce.nn.recurrent.cells import State


@dataclass
class TagsOfSource:
    """The tags that each source begins with: their embeddings_BSD, zeros elsewhere, and where they
    are."""

    embeddings_BSD: Tensor
    are_BS: Tensor

    @property
    def counts_B(self) -> Tensor:
        return self.are_BS.sum(dim=1)


@dataclass
class EncoderOutput:
    """The source as the decoder sees it.

    `lengths_B` stays on the CPU, so that nothing waits for the device to learn it; where a CUDA
    graph replays the pass, they are on the device, and nothing reads them.
    `mask` hides the padding; it is None where there is none, which is faster.
    `final` is a recurrent encoder's last state of each layer, both directions joined.
    `values_BSD` is what a convolutional decoder averages; None: the states.
    `projected` are the keys and values of each layer of a decoder, and whose they are, kept where
    the same memory is decoded more than once.
    `copies_BS` is what is written where a state's token is copied; None: nothing can be.
    `tags` are read by the decoder alone; None: they are among the states, as other tokens.
    """

    states_BSD: Tensor
    lengths_B: Tensor
    mask: Mask | None
    final: list[State] | None = None
    values_BSD: Tensor | None = None
    projected: tuple[object, list[Tensor]] | None = None
    copies_BS: Tensor | None = None
    tags: TagsOfSource | None = None

    def mean_BD(self) -> Tensor:
        """The average of each source's states; tags that the decoder reads have none."""
        lengths_B = self.lengths_B.to(self.states_BSD.device)
        real_BS = real_positions(lengths_B, self.states_BSD.shape[1])
        if self.tags is not None:
            lengths_B = lengths_B - self.tags.counts_B
        total_BD = self.states_BSD.masked_fill(~real_BS[:, :, None], 0).sum(dim=1)
        return total_BD / lengths_B[:, None].clamp(min=1)


def padding_mask(lengths_B: Tensor, length: int, device: torch.device) -> Mask | None:
    """Hides what is beyond each length; None where every sequence is `length` long.

    Where lengths are not to be read, there is always a mask.
    """
    if readable(lengths_B) and int(lengths_B.min()) >= length:
        return None
    return padding(lengths_B.to(device, non_blocking=True), length)


def visible_lengths(memory: EncoderOutput) -> Tensor | None:
    """How many of its first states a decoder may see of each source, tags that it reads apart among
    them; None where others are hidden than those beyond an end."""
    B, S, _ = memory.states_BSD.shape
    visible_B1S = None if memory.mask is None else memory.mask.dense(1, S)
    if visible_B1S is None:
        return memory.states_BSD.new_full((B,), S, dtype=torch.int64)
    if memory.tags is not None:
        visible_B1S = visible_B1S | memory.tags.are_BS[:, None]
    lengths_B = visible_B1S.sum(dim=(1, 2)).expand(B).contiguous()
    place_S = torch.arange(S, device=lengths_B.device)
    ends_early = torch.equal(visible_B1S[:, 0], place_S < lengths_B[:, None])
    return lengths_B if ends_early else None


def reorder_mask(mask: Mask | None, index_B: Tensor) -> Mask | None:
    """The mask of the rows at index_B."""
    if mask is None or mask.visible_BTS is None:
        return mask
    return replace(mask, visible_BTS=mask.visible_BTS[index_B])
