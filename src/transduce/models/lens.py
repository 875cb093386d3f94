"""A lens: the attention weights of named parts, while everything else runs fused."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from transduce.nn.attention import Attention
from transduce.nn.multihead import MultiHeadAttention


class Lens:
    """Records weights_BHTS of the attention parts whose names match any of the patterns.

        with Lens(network, "decoder.*.cross_attention") as lens:
            network(source_BS, lengths_B, target_BT)
        lens.weights["decoder.blocks.0.cross_attention"]

    Steps one after the other are joined along T. Parts that do not match never compute weights.
    """

    def __init__(self, network: nn.Module, *patterns: str) -> None:
        self.parts = {
            name: part
            for name, part in attentions(network).items()
            if any(fnmatchcase(name, pattern) for pattern in patterns or ("*",))
        }
        self._seen: dict[str, list[Tensor]] = {}

    @property
    def weights(self) -> dict[str, Tensor]:
        return {name: torch.cat(seen, dim=2) for name, seen in self._seen.items()}

    def __enter__(self) -> Self:
        self._seen = {}
        for name, part in self.parts.items():
            part.watch = self._recorder(name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for part in self.parts.values():
            part.watch = None

    def _recorder(self, name: str) -> Callable[[Tensor], None]:
        return lambda weights_BHTS: self._seen.setdefault(name, []).append(weights_BHTS.detach())


def attentions(network: nn.Module) -> dict[str, Attention | MultiHeadAttention]:
    """The attention parts of a network by name, in the order of its layers."""
    kinds = (Attention, MultiHeadAttention)
    return {name: part for name, part in network.named_modules() if isinstance(part, kinds)}
