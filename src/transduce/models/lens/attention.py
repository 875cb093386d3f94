"""A lens: the attention weights of named parts, while everything else runs fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transduce.errors import ModelError
from transduce.models.lens.names import matches
from transduce.nn.attention.attention import Attention
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.attention.watchable import WATCHES, Watch


class Lens:
    """Records the attention weights_BHTS of those parts of a network that match the patterns.

        with Lens(network, "decoder.*.cross_attention") as lens:
            network(source_BS, lengths_B, target_BT)
        lens.weights["decoder.blocks.0.cross_attention"]

    Consecutive steps are joined along T; what did not exist yet at a step has weight zero. Parts
    that do not match never compute weights. Around a whole search it sees the rows of every step,
    which change as hypotheses come and go: `Model.lens` has the weights of each output. It sees
    what its own thread computes; others may use the network meanwhile, and compute no weights.

    Args:
        network: the network to look into.
        *patterns: names of its attention parts, with * for any text.
    """

    def __init__(self, network: nn.Module, *patterns: str) -> None:
        self.parts = {
            name: part
            for name, part in attentions(network).items()
            if matches(name, patterns or ("*",))
        }
        self._seen: dict[str, list[Tensor]] = {}
        self._before: Mapping[int, Watch] = {}

    @property
    def calls(self) -> dict[str, list[Tensor]]:
        """The weights_BHTS of every single call."""
        return self._seen

    @property
    def weights(self) -> dict[str, Tensor]:
        """Raises ModelError where the calls were of different numbers of rows."""
        return {name: _join(name, seen) for name, seen in self._seen.items()}

    def __enter__(self) -> Self:
        self._seen = {}
        self._before = WATCHES.get()
        own = {part.number: self._recorder(name) for name, part in self.parts.items()}
        WATCHES.set({**self._before, **own})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        WATCHES.set(self._before)  # those of a lens around this one, or none

    def _recorder(self, name: str) -> Callable[[Tensor], None]:
        return lambda weights_BHTS: self._seen.setdefault(name, []).append(weights_BHTS.detach())


def _join(name: str, steps: list[Tensor]) -> Tensor:
    """One weights_BHTS of several; masked self-attention has more keys at each step."""
    rows = sorted({len(weights_BHTS) for weights_BHTS in steps})
    if len(rows) > 1:
        raise ModelError(
            f"the {len(steps)} calls of {name} had between {rows[0]} and {rows[-1]} rows, as in a "
            f"search, whose hypotheses come and go: `with model.lens(...)` around the run has the "
            f"weights of each output; lens.calls has those of every call"
        )
    longest = max(weights_BHTS.shape[3] for weights_BHTS in steps)
    padded = [F.pad(w_BHTS, (0, longest - w_BHTS.shape[3])) for w_BHTS in steps]
    return torch.cat(padded, dim=2)


def attentions(network: nn.Module) -> dict[str, Attention | MultiHeadAttention]:
    """The attention parts of a network by name, in the order of its layers."""
    kinds = (Attention, MultiHeadAttention)
    return {name: part for name, part in network.named_modules() if isinstance(part, kinds)}
