"""The adapter of a network: the matrices it can be put to, its weights, and the network with it.

An adapter is trained beside frozen weights (`AdaptedNetwork`), and is kept as an `AdapterState`,
which merges it into them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from transduce.data.batches.batch import Batch
from transduce.data.batches.packing import Packed
from transduce.models.encoder_decoder import Head
from transduce.models.trainable import NO_SPEECH_LOSSES, SpeechLosses, TrainableNetwork
from transduce.nn.attention.multihead import MultiHeadAttention
from transduce.nn.loss import Loss
from transduce.nn.low_rank import LowRank, adapted
from transduce.nn.torch_private import with_weights

DOT = "/"  # in the names of modules, which may have no dot
FUSED = ("q", "k", "v")
"""The three matrices, one above the other, of the fused projection of attention."""


class Target(NamedTuple):
    """A matrix that can have an adapter: a parameter, or a third of the rows of a fused one."""

    name: str
    """Such as encoder.blocks.0.self_attention.in_projection.q."""
    parameter: str
    third: int | None = None

    def of(self, weights: Mapping[str, Tensor]) -> Tensor:
        """The matrix, a view."""
        whole = weights[self.parameter]
        return whole if self.third is None else whole.chunk(3)[self.third]


def adaptable(network: TrainableNetwork) -> dict[str, Target]:
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
                found[f"{owner}.{name}"] = Target(f"{owner}.{name}", parameter, third)
        else:
            found[owner] = Target(owner, parameter)
    return found


@dataclass(frozen=True)
class LowRankWeights:
    """The adapter of one matrix: A [r, D], B [F, r], of DoRA also the length of each row."""

    A_RD: Tensor
    B_FR: Tensor
    scale: float
    magnitude_F: Tensor | None = None


@dataclass(frozen=True)
class AdapterState:
    """All of an adapter: low-rank matrices by target, and parameters trained as a whole."""

    low_rank: dict[str, LowRankWeights]
    whole: dict[str, Tensor] = field(default_factory=dict)

    @torch.no_grad()
    def merged(
        self, weights: Mapping[str, Tensor], targets: Mapping[str, Target]
    ) -> dict[str, Tensor]:
        """The weights that the adapter changes, merged with it: new tensors, in float32."""
        found = {
            name: value.to(weights[name].device, weights[name].dtype)
            for name, value in self.whole.items()
        }
        touched = {targets[name].parameter for name in self.low_rank}
        found |= {name: found.get(name, weights[name]).clone() for name in sorted(touched)}
        for name, one in self.low_rank.items():
            matrix_FD = targets[name].of(found)
            parts = [
                None if part is None else part.to(matrix_FD.device, matrix_FD.dtype)
                for part in (one.A_RD, one.B_FR, one.magnitude_F)
            ]
            A_RD, B_FR, magnitude_F = parts
            assert A_RD is not None
            assert B_FR is not None
            matrix_FD.copy_(adapted(matrix_FD, A_RD, B_FR, one.scale, magnitude_F))
        return found


class AdaptedNetwork(TrainableNetwork):
    """A frozen network and the adapters of some of its matrices.

    In a pass, the network computes with the adapted matrices W' in place of its own: what is
    trained is exactly what a merged network computes, by every kernel.
    """

    def __init__(
        self,
        network: TrainableNetwork,
        targets: Sequence[Target],
        *,
        rank: int,
        alpha: float,
        magnitude: bool = False,
        dropout: float = 0.0,
        whole: Sequence[str] = (),
    ) -> None:
        """whole: parameters of the network that are trained too, by name."""
        super().__init__()
        network.requires_grad_(False)
        self.network = network
        self.targets = {target.name: target for target in targets}
        own = dict(network.named_parameters())
        self.whole = tuple(whole)
        for name in self.whole:
            own[name].requires_grad_(True)
        self.low_rank = nn.ModuleDict(
            {
                target.name.replace(".", DOT): LowRank(
                    target.of(own).detach(), rank, alpha, magnitude=magnitude, dropout=dropout
                )
                for target in targets
            }
        )

    def _adapted(self) -> AbstractContextManager[None]:
        """Within, the modules of the network have the adapted matrices as their weights."""
        own = dict(self.network.named_parameters())
        below: dict[str, list[Target]] = {}
        for target in self.targets.values():
            below.setdefault(target.parameter, []).append(target)
        return with_weights(
            [(self._owner(name), self._weight(own[name], some)) for name, some in below.items()]
        )

    def _weight(self, own_FD: Tensor, targets: Sequence[Target]) -> Tensor:
        """A parameter with the adapters of its targets."""
        if targets[0].third is None:
            adapted_FD: Tensor = self._module(targets[0])(own_FD)
            return adapted_FD
        thirds = list(own_FD.chunk(3))
        for target in targets:
            assert target.third is not None
            thirds[target.third] = self._module(target)(thirds[target.third])
        return torch.cat(thirds)

    def _owner(self, name: str) -> nn.Module:
        return self.network.get_submodule(name.rpartition(".")[0])

    def _module(self, target: Target) -> LowRank:
        module = self.low_rank[target.name.replace(".", DOT)]
        assert isinstance(module, LowRank)
        return module

    # --------------------------------------------------------------------------- training

    def loss(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
    ) -> Loss:
        with self._adapted():
            return self.network.loss(source_BS, lengths_B, target_BT, smoothing, r_drop)

    def batch_loss(
        self,
        batch: Batch,
        smoothing: float = 0.0,
        r_drop: float = 0.0,
        losses: SpeechLosses = NO_SPEECH_LOSSES,
    ) -> Loss:
        with self._adapted():
            return self.network.batch_loss(batch, smoothing, r_drop, losses)

    def packs(self, longest: int) -> bool:
        return self.network.packs(longest)

    def packed_loss(self, packed: Packed, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        with self._adapted():
            return self.network.packed_loss(packed, smoothing, r_drop)

    # ---------------------------------------------------------------------------- weights

    def state(self, weights: Mapping[str, Tensor] | None = None) -> AdapterState:
        """The adapter as it is now; with weights of this network, such as their moving average,
        as it is by these.
        """
        own = weights if weights is not None else dict(self.named_parameters())
        low_rank = {}
        for target in self.targets.values():
            prefix = f"low_rank.{target.name.replace('.', DOT)}."
            magnitude = own.get(f"{prefix}magnitude")
            low_rank[target.name] = LowRankWeights(
                own[f"{prefix}A"].detach(),
                own[f"{prefix}B"].detach(),
                self._module(target).scale,
                None if magnitude is None else magnitude.detach(),
            )
        whole = {name: own[f"network.{name}"].detach() for name in self.whole}
        return AdapterState(low_rank, whole)

    @torch.no_grad()
    def take(self, state: AdapterState) -> None:
        """Continue with the weights of an adapter of the same targets."""
        for target in self.targets.values():
            module, weights = self._module(target), state.low_rank[target.name]
            module.A.copy_(weights.A_RD)
            module.B.copy_(weights.B_FR)
            if module.magnitude is not None and weights.magnitude_F is not None:
                module.magnitude.copy_(weights.magnitude_F)
        own = dict(self.network.named_parameters())
        for name in self.whole:
            own[name].copy_(state.whole[name])
