"""Encoder states of windows, kept while these are decoded: the encoder takes most of the time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from transduce.data.audio.corpus import Wave
from transduce.data.batches.batch import pad_waves
from transduce.models.encoder_output import EncoderOutput, padding_mask
from transduce.whisper.steps import Encode

SKETCHED = 64  # samples by which recordings are looked up before they are compared


class EncoderCache:
    """Encodes each recording once, however often it is asked for.

    Recordings are told apart by all of their samples: comparing these is much faster than a digest
    of them.
    """

    def __init__(self, encode: Encode, device: torch.device) -> None:
        self._encode, self._device = encode, device
        self._samples: list[Wave] = []
        self._states: list[Tensor] = []
        self._alike: dict[tuple[int, bytes], list[int]] = {}
        """The recordings with the same length and sketch."""
        self._last: tuple[list[int], EncoderOutput] | None = None

    def __call__(self, source_BS: Tensor, lengths_B: Tensor) -> EncoderOutput:
        rows = source_BS.cpu().contiguous().numpy()
        return self.of_waves([row[:end] for row, end in zip(rows, lengths_B.tolist(), strict=True)])

    def of_waves(self, waves: Sequence[Wave]) -> EncoderOutput:
        """The encoder's states of recordings that are not padded yet."""
        numbers, new = [], []
        for wave in waves:
            number, is_new = self._number(wave)
            numbers.append(number)
            new += [wave] if is_new else []
        if self._last is not None and self._last[0] == numbers:
            return self._last[1]  # what a decoder keeps with it is used again
        made_BSD = self._add(new) if new else None
        found = [self._states[number] for number in numbers]
        if made_BSD is not None and len(new) == len(waves) and _all_long(found, made_BSD):
            states_BSD = made_BSD  # as it is: nothing is copied
        else:
            states_BSD = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        lengths_B = torch.tensor([len(states_SD) for states_SD in found])
        mask = padding_mask(lengths_B, states_BSD.shape[1], states_BSD.device)
        self._last = (numbers, EncoderOutput(states_BSD, lengths_B, mask))
        return self._last[1]

    def _add(self, new: Sequence[Wave]) -> Tensor:
        """Encode these recordings; their states, padded."""
        try:
            memory = self._encode(*pad_waves(new, self._device))
        except BaseException:  # out of memory: what has no states is not known
            self.clear()
            raise
        for place in range(len(new)):
            self._states.append(memory.states_BSD[place, : int(memory.lengths_B[place])])
        return memory.states_BSD

    def _number(self, samples: Wave) -> tuple[int, bool]:
        """The number of a recording, and whether it is new."""
        sketch = samples[:: max(1, len(samples) // SKETCHED)].tobytes()
        alike = self._alike.setdefault((len(samples), sketch), [])
        for number in alike:
            if np.array_equal(self._samples[number], samples):
                return number, False
        alike.append(len(self._samples))
        self._samples.append(samples)
        return alike[-1], True

    def clear(self) -> None:
        self._samples.clear()
        self._states.clear()
        self._alike.clear()
        self._last = None


def _all_long(found: Sequence[Tensor], padded_BSD: Tensor) -> bool:
    """Whether none of them is padded."""
    return all(len(states_SD) == padded_BSD.shape[1] for states_SD in found)
