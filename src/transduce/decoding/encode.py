"""Encoder states of many sources of any length, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transduce.data.batches.batch import collate
from transduce.decoding.batch.decode import PLACES, pack
from transduce.models.memory import Memory


@dataclass(frozen=True)
class Encoding:
    """What the encoder makes of sources; their padding is zero."""

    states_BSD: Tensor
    lengths_B: Tensor
    """How many of its states are a source's own, END's included; on the CPU."""
    tokens: list[list[str]]
    """What each state is of; empty where sources are audio."""

    @property
    def mask_BS(self) -> Tensor:
        """True where a state is a source's own, False where it is padding."""
        place_S = torch.arange(self.states_BSD.shape[1])
        return (place_S < self.lengths_B[:, None]).to(self.states_BSD.device)


def encoder_states(
    encode: Callable[[Tensor, Tensor], Memory],
    sources: Sequence[Sequence[int]],
    device: torch.device,
    *,
    ends: bool,
) -> list[Tensor]:
    """The states_SD of each source; `ends`: an END is read after it."""
    found: dict[int, Tensor] = {}
    for indices in pack(range(len(sources)), [len(s) + ends for s in sources], PLACES):
        batch = collate([sources[i] for i in indices], None, ends=ends).to(device)
        memory = encode(batch.source_BS, batch.source_lengths_B)
        for row, index in enumerate(indices):
            found[index] = memory.states_BSD[row, : int(memory.lengths_B[row])]
    return [found[index] for index in range(len(sources))]


def joined(states: Sequence[Tensor], tokens: list[list[str]], width: int) -> Encoding:
    """Outside of inference mode, so that a probe can be trained on them."""
    lengths_B = torch.tensor([len(states_SD) for states_SD in states], dtype=torch.long)
    if not states:
        return Encoding(torch.zeros(0, 0, width), lengths_B, tokens)
    return Encoding(pad_sequence([s.clone() for s in states], batch_first=True), lengths_B, tokens)
