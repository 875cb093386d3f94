"""The weight matrices of a network that an adapter can be put to, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor, nn

from transduce.models.encoder_decoder import Head
from transduce.models.trainable import TrainableNetwork
from transduce.nn.attention.multihead import MultiHeadAttention

FUSED = ("q", "k", "v")
"""The three matrices, one above the other, of the fused projection of attention."""


class Place(NamedTuple):
    """A matrix: a parameter, or a third of the rows of a fused one."""

    name: str
    """Such as encoder.blocks.0.self_attention.in_projection.q."""
    parameter: str
    third: int | None = None

    def of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The matrix, a view."""
        whole = weights[self.parameter]
        return whole if self.third is None else whole.chunk(3)[self.third]


def adaptable(network: TrainableNetwork) -> dict[str, Place]:
    """All matrices that linear layers multiply with, by name; not embeddings and what is tied to
    them, recurrent cells and convolutions.

    Queries, keys and values have a matrix each: an adapter of the fused one would share its A.
    """
    modules = dict(network.named_modules())
    found = {}
    for parameter, _ in network.named_parameters():
        owner, _, kind = parameter.rpartition(".")
        module = modules[owner]
        if kind != "weight" or not isinstance(module, nn.Linear | Head):
            continue
        above = modules[owner.rpartition(".")[0]]
        if isinstance(above, MultiHeadAttention) and owner.endswith(".in_projection"):
            for third, name in enumerate(FUSED):
                found[f"{owner}.{name}"] = Place(f"{owner}.{name}", parameter, third)
        else:
            found[owner] = Place(owner, parameter)
    return found
