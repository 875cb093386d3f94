"""Pools: of all states of a source, one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from transduce.models.encoder_output import EncoderOutput
from transduce.nn.attention.attention import Attention, Dot
from transduce.nn.masks import Segments


class MeanPool(nn.Module):
    """The average of the states; padding is none of them."""

    wider = 1
    """How many times as wide as a state the result is."""

    def forward(self, memory: EncoderOutput) -> Tensor:
        """A memory of B sources to pooled_BD; of sources in one row, a row for each segment."""
        segments = _segments(memory)
        if segments is None:
            return memory.mean_BD()
        states_SD = memory.states_BSD[0].float()
        counts_B1 = segments.key_offsets.diff().clamp(min=1)[:, None]
        sums_BD = states_SD.new_zeros(len(counts_B1), states_SD.shape[1])
        return sums_BD.index_add(0, segments.of_keys(len(states_SD)), states_SD) / counts_B1


class AttentionPool(nn.Module):
    """The states attended to by each of them, by dot products, and averaged; beside it, their
    own average (2·dim numbers).

    Averaged over the queries, the weights say how much of the result each word is.
    """

    wider = 2

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = Attention(Dot(width, width))

    def forward(self, memory: EncoderOutput) -> Tensor:
        x_BSD = memory.states_BSD
        context_BSD = self.attention(x_BSD, x_BSD, x_BSD, memory.mask)
        averages = (
            EncoderOutput(s, memory.lengths_B, None).mean_BD() for s in (context_BSD, x_BSD)
        )
        return torch.cat(list(averages), dim=-1)


class LastPool(nn.Module):
    """What is left at the end: a recurrent encoder's final state, else the last token's."""

    wider = 1

    def forward(self, memory: EncoderOutput) -> Tensor:
        if memory.final is not None:
            return memory.final[-1][0]
        segments = _segments(memory)
        if segments is not None:
            return memory.states_BSD[0, (segments.key_offsets[1:] - 1).clamp(min=0)]
        last_B = (memory.lengths_B - 1).clamp(min=0).to(memory.states_BSD.device)
        return memory.states_BSD[torch.arange(len(last_B), device=last_B.device), last_B]


def _segments(memory: EncoderOutput) -> Segments | None:
    return None if memory.mask is None else memory.mask.segments


def build_pool(kind: str, width: int) -> MeanPool | AttentionPool | LastPool:
    """Pooling by name; ValueError for another than "mean", "attention" and "last"."""
    if kind == "attention":
        return AttentionPool(width)
    if kind not in ("mean", "last"):
        raise ValueError(f'pooling must be "mean", "attention" or "last", not "{kind}".')
    return MeanPool() if kind == "mean" else LastPool()
