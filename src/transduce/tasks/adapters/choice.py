"""Which adapter a network uses: merged into its weights, which are kept beside and come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor

from transduce.errors import ModelError
from transduce.models import TrainableNetwork
from transduce.models.adapters import adaptable
from transduce.models.weights import weights_of
from transduce.recipe import nearest
from transduce.tasks.adapters.folder import Adapter, check_base, read_adapter


class AdapterChoice:
    """The adapters of one network by name, and the one in use.

    A merged matrix is W + scale x B A: all runtimes see it as they see any weights. The base's own
    matrices are kept as they were, bit for bit.
    """

    def __init__(self, network: TrainableNetwork) -> None:
        self.network = network
        self.known: dict[str, Adapter] = {}
        self.used: str | None = None
        self._own: dict[str, Tensor] = {}

    def add(self, adapter: str | Path | Adapter, name: str | None = None) -> str:
        """Read an adapter; returns its name, by default that of its folder. Raises ModelError."""
        read = adapter if isinstance(adapter, Adapter) else read_adapter(Path(adapter))
        name = name or read.name
        with self.base():
            check_base(read, self.network, "this model")
        if self.used == name:  # its weights may be others now
            self.use(None)
        self.known[name] = read
        return name

    def use(self, name: str | None) -> None:
        """Merge an adapter into the weights; None: the weights of the base alone."""
        if name == self.used:
            return
        if name is not None and name not in self.known:
            there = ", ".join(self.known) or "none"
            near = nearest(name, self.known, f"; there are {there}: add it with add_adapter")
            raise ModelError(f"there is no adapter {name}{near}")
        if self.used is not None:
            _put(self.network, self._own)
            self._own, self.used = {}, None
        if name is not None:
            weights = weights_of(self.network)
            merged = self.known[name].state.merged(weights, adaptable(self.network))
            self._own = {key: weights[key].clone() for key in merged}
            _put(self.network, merged)
            self.used = name

    @contextmanager
    def base(self) -> Iterator[None]:
        """Within, the network has its own weights, without an adapter."""
        before = self.used
        self.use(None)
        try:
            yield
        finally:
            self.use(before)


@torch.no_grad()
def _put(network: TrainableNetwork, weights: Mapping[str, Tensor]) -> None:
    own = dict(network.named_parameters())
    for name, value in weights.items():
        own[name].copy_(value)


def adapted_copy(network: TrainableNetwork, adapter: Adapter) -> TrainableNetwork:
    """A network of its own with an adapter merged; all weights that this does not change are shared
    with the original.
    """
    check_base(adapter, network, "this model")
    own = dict(network.named_parameters())
    merged = adapter.state.merged(weights_of(network), adaptable(network))
    shared = {id(parameter): parameter for name, parameter in own.items() if name not in merged}
    copied = deepcopy(network, shared)
    _put(copied, merged)
    return copied
