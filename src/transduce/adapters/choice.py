"""Which adapter a network uses: whether it fits, merged into its weights, which come back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transduce.adapters.network import AdapterState, adaptable
from transduce.errors import ModelError
from transduce.models import TrainableNetwork
from transduce.models.weights import fingerprint_of, weights_of
from transduce.recipe import nearest


@dataclass(frozen=True)
class Base:
    """The model beneath an adapter."""

    folder: str
    """Its folder when the adapter was trained; absolute."""
    beside: str
    """The same, relative to the adapter's folder: both may be moved together."""
    fingerprint: str


@dataclass(frozen=True)
class Adapter:
    """An adapter that was read from a folder."""

    folder: Path
    state: AdapterState
    base: Base | None = None
    """None: the file does not say (PEFT's own files)."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name


def check_base(adapter: Adapter, network: TrainableNetwork, where: str) -> None:
    """Raise ModelError where an adapter does not belong to a network's weights.

    PEFT's own files do not name these: names and shapes are compared, nothing else can be.
    """
    weights = weights_of(network)
    targets = adaptable(network)
    for name, one in adapter.state.low_rank.items():
        if name not in targets:
            raise ModelError(f"the adapter {adapter.folder} is for {name}, which {where} has not")
        outputs, inputs = targets[name].of(weights).shape
        rank = one.A_RD.shape[0]
        shapes: list[tuple[Tensor, tuple[int, ...]]]
        shapes = [(one.A_RD, (rank, inputs)), (one.B_FR, (outputs, rank))]
        shapes += [] if one.magnitude_F is None else [(one.magnitude_F, (outputs,))]
        for tensor, shape in shapes:
            if tuple(tensor.shape) != shape:
                raise ModelError(
                    f"the adapter {adapter.folder} does not fit {where}: {name} needs "
                    f"{_shape(shape)}, the adapter has {_shape(tuple(tensor.shape))}"
                )
    for name, value in adapter.state.whole.items():
        if name not in weights or weights[name].shape != value.shape:
            raise ModelError(f"the adapter {adapter.folder} does not fit {where}: {name} differs")
    if adapter.base is not None and fingerprint_of(weights) != adapter.base.fingerprint:
        raise ModelError(
            f"the adapter {adapter.folder} was trained on other weights than those of {where}: "
            f"their fingerprints differ; give the model that it was trained on (it was "
            f"{adapter.base.folder})"
        )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


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

    def add(self, adapter: Adapter, name: str | None = None) -> str:
        """Add an adapter; returns its name, by default that of its folder. Raises ModelError."""
        name = name or adapter.name
        with self.base():
            check_base(adapter, self.network, "this model")
        if self.used == name:  # its weights may be others now
            self.use(None)
        self.known[name] = adapter
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
