"""Encoder states of windows, kept while these are decoded: the encoder takes most of the time."""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

from transduce.decoding.whisper.steps import Encode
from transduce.models.memory import Memory, padding_mask


class EncoderCache:
    """Encodes each recording once, however often it is asked for.

    Sources may be on the CPU, which saves copies to and from the device.
    """

    def __init__(self, encode: Encode, device: torch.device) -> None:
        self._encode, self._device = encode, device
        self._states: dict[bytes, Tensor] = {}
        self._last: tuple[list[bytes], Memory] | None = None

    def __call__(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        keys = digests(source_BS, lengths_B)
        if self._last is not None and self._last[0] == keys:
            return self._last[1]  # what a decoder keeps with it is used again
        new = [row for row, key in enumerate(keys) if key not in self._states]
        if new:
            rows = torch.tensor(new)
            source_NS = source_BS[rows.to(source_BS.device)].to(self._device)
            memory = self._encode(source_NS, lengths_B[rows])
            for place, row in enumerate(new):
                length = int(memory.lengths_B[place])
                self._states[keys[row]] = memory.states_BSD[place, :length]
        found = [self._states[key] for key in keys]
        states_BSD = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        lengths_B = torch.tensor([len(states_SD) for states_SD in found])
        mask = padding_mask(lengths_B, states_BSD.shape[1], states_BSD.device)
        self._last = (keys, Memory(states_BSD, lengths_B, mask))
        return self._last[1]

    def clear(self) -> None:
        self._states.clear()
        self._last = None


def digests(source_BS: Tensor, lengths_B: Tensor) -> list[bytes]:
    """A name for the samples of each row."""
    rows = source_BS.cpu().contiguous().numpy()
    return [
        blake2b(row[:length].tobytes(), digest_size=16).digest()
        for row, length in zip(rows, lengths_B.tolist(), strict=True)
    ]
