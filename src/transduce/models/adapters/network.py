"""A network with an adapter beside its frozen weights, as it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from transduce.data.batches.batch import Batch
from transduce.data.batches.packing import Packed
from transduce.models.adapters.places import Place
from transduce.models.adapters.state import AdapterState, LowRankWeights
from transduce.models.trainable import TrainableNetwork
from transduce.nn.loss import Loss
from transduce.nn.low_rank import LowRank
from transduce.nn.torch_private import with_weights

DOT = "/"  # in the names of modules, which may have no dot


class AdaptedNetwork(TrainableNetwork):
    """A frozen network and the adapters of some of its matrices.

    In a pass, the network computes with the adapted matrices W' in place of its own: what is
    trained is exactly what a merged network computes, by every kernel.
    """

    def __init__(
        self,
        network: TrainableNetwork,
        places: Sequence[Place],
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
        self.places = {place.name: place for place in places}
        own = dict(network.named_parameters())
        self.whole = tuple(whole)
        for name in self.whole:
            own[name].requires_grad_(True)
        self.low_rank = nn.ModuleDict(
            {
                place.name.replace(".", DOT): LowRank(
                    place.of(own).detach(), rank, alpha, magnitude=magnitude, dropout=dropout
                )
                for place in places
            }
        )

    def _adapted(self) -> AbstractContextManager[None]:
        """Within, the modules of the network have the adapted matrices as their weights."""
        own = dict(self.network.named_parameters())
        below: dict[str, list[Place]] = {}
        for place in self.places.values():
            below.setdefault(place.parameter, []).append(place)
        return with_weights(
            [(self._owner(name), self._weight(own[name], some)) for name, some in below.items()]
        )

    def _weight(self, own_FD: Tensor, places: Sequence[Place]) -> Tensor:
        """A parameter with the adapters of its places."""
        if places[0].third is None:
            adapted_FD: Tensor = self._module(places[0])(own_FD)
            return adapted_FD
        thirds = list(own_FD.chunk(3))
        for place in places:
            assert place.third is not None
            thirds[place.third] = self._module(place)(thirds[place.third])
        return torch.cat(thirds)

    def _owner(self, name: str) -> nn.Module:
        return self.network.get_submodule(name.rpartition(".")[0])

    def _module(self, place: Place) -> LowRank:
        module = self.low_rank[place.name.replace(".", DOT)]
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

    def batch_loss(self, batch: Batch, smoothing: float = 0.0, r_drop: float = 0.0) -> Loss:
        with self._adapted():
            return self.network.batch_loss(batch, smoothing, r_drop)

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
        for place in self.places.values():
            prefix = f"low_rank.{place.name.replace('.', DOT)}."
            magnitude = own.get(f"{prefix}magnitude")
            low_rank[place.name] = LowRankWeights(
                own[f"{prefix}A"].detach(),
                own[f"{prefix}B"].detach(),
                self._module(place).scale,
                None if magnitude is None else magnitude.detach(),
            )
        whole = {name: own[f"network.{name}"].detach() for name in self.whole}
        return AdapterState(low_rank, whole)

    @torch.no_grad()
    def take(self, state: AdapterState) -> None:
        """Continue with the weights of an adapter of the same places."""
        for place in self.places.values():
            module, given = self._module(place), state.low_rank[place.name]
            module.A.copy_(given.A_RD)
            module.B.copy_(given.B_FR)
            if module.magnitude is not None and given.magnitude_F is not None:
                module.magnitude.copy_(given.magnitude_F)
        own = dict(self.network.named_parameters())
        for name in self.whole:
            own[name].copy_(state.whole[name])
