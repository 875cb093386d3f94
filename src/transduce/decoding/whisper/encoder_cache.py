"""Encoder states of windows, kept while these are decoded: the encoder takes most of the time."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

from transduce.decoding.whisper.steps import Encode
from transduce.models.memory import Memory, padding_mask


class EncoderCache:
    """Encodes each recording once, however often it is asked for."""

    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._states: dict[bytes, Tensor] = {}

    def __call__(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        keys = digests(source_BS, lengths_B)
        new = [row for row, key in enumerate(keys) if key not in self._states]
        if new:
            rows = torch.tensor(new)
            memory = self._encode(source_BS[rows.to(source_BS.device)], lengths_B[rows])
            for place, row in enumerate(new):
                length = int(memory.lengths_B[place])
                self._states[keys[row]] = memory.states_BSD[place, :length]
        found = [self._states[key] for key in keys]
        states_BSD = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        lengths_B = torch.tensor([len(states_SD) for states_SD in found])
        mask = padding_mask(lengths_B, states_BSD.shape[1], states_BSD.device)
        return Memory(states_BSD, lengths_B, mask)

    def clear(self) -> None:
        self._states.clear()


def digests(source_BS: Tensor, lengths_B: Tensor) -> list[bytes]:
    """A name for the samples of each row."""
    rows = source_BS.cpu().contiguous().numpy()
    return [
        blake2b(row[:length].tobytes(), digest_size=16).digest()
        for row, length in zip(rows, lengths_B.tolist(), strict=True)
    ]
