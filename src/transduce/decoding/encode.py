"""Encoder states of many sources, computed in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transduce.data.batches.batch import Row, collate
from transduce.decoding.batch.decode import PLACES
from transduce.decoding.batch.token_budget import pack
from transduce.models.call_context import NO_CONTEXT, CallContext
from transduce.models.encoder_output import EncoderOutput
from transduce.nn.masks import real_positions


@dataclass(frozen=True)
class Encoding:
    """Encoder states of several sources; padding is zero."""

    states_BSD: Tensor
    lengths_B: Tensor
    """The number of states of each source, END's included; on the CPU."""
    tokens: list[list[str]]
    """The token of each state; empty where sources are audio."""

    @property
    def mask_BS(self) -> Tensor:
        """True for states, False for padding."""
        mask_BS = real_positions(self.lengths_B, self.states_BSD.shape[1])
        return mask_BS.to(self.states_BSD.device)


def encoder_states(
    encode: Callable[..., EncoderOutput],
    sources: Sequence[Row],
    device: torch.device,
    *,
    ends: bool,
    context: CallContext = NO_CONTEXT,
) -> list[Tensor]:
    """The states_SD of each source; `ends`: END is appended to it."""
    found: dict[int, Tensor] = {}
    for indices in pack(range(len(sources)), [len(s) + ends for s in sources], PLACES):
        batch = collate([sources[i] for i in indices], None, ends=ends).to(device)
        memory = encode(batch.source_BS, batch.source_lengths_B, **context.keywords)
        for row, index in enumerate(indices):
            found[index] = memory.states_BSD[row, : int(memory.lengths_B[row])]
    return [found[index] for index in range(len(sources))]


def pad_states(states: Sequence[Tensor], tokens: list[list[str]], width: int) -> Encoding:
    """Pad states to one batch; as normal tensors, so that a probe can be trained on them."""
    lengths_B = torch.tensor([len(states_SD) for states_SD in states], dtype=torch.long)
    if not states:
        return Encoding(torch.zeros(0, 0, width), lengths_B, tokens)
    return Encoding(pad_sequence([s.clone() for s in states], batch_first=True), lengths_B, tokens)
