"""Decoder states that keep their attention to the source, for whoever asks in a call's context."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(kw_only=True)
class KeptAttention:
    """The base of decoder states: with `keeps_attention`, each step leaves its attention here."""

    keeps_attention: bool = False
    attention_BS: Tensor | None = field(default=None, repr=False)
    """Of the last step and the last layer, the mean over heads."""

    def keep(self, weights_BHTS: Tensor) -> None:
        self.attention_BS = weights_BHTS[:, :, -1].mean(dim=1).float()
