"""What an encoder leaves for a decoder."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from transduce.nn.masks import Mask, padding

State = tuple[Tensor, ...]


@dataclass
class Memory:
    """The source as the decoder sees it.

    `lengths_B` stays on the CPU, so that nothing waits for the device to learn it.
    `final` is a recurrent encoder's last state of each layer, both directions joined.
    """

    states_BSD: Tensor
    lengths_B: Tensor
    final: list[State] | None = None

    @property
    def mask(self) -> Mask | None:
        """Hides the padding; None where there is none, which is faster."""
        return padding_mask(self.lengths_B, self.states_BSD.shape[1], self.states_BSD.device)

    def mean_BD(self) -> Tensor:
        """The average of each source's states."""
        lengths_B = self.lengths_B.to(self.states_BSD.device)
        steps_S = torch.arange(self.states_BSD.shape[1], device=lengths_B.device)
        inside_BS1 = (steps_S < lengths_B[:, None])[:, :, None]
        total_BD = self.states_BSD.masked_fill(~inside_BS1, 0).sum(dim=1)
        return total_BD / lengths_B[:, None].clamp(min=1)


def padding_mask(lengths_B: Tensor, length: int, device: torch.device) -> Mask | None:
    if int(lengths_B.min()) >= length:
        return None
    return padding(lengths_B.to(device, non_blocking=True), length)
