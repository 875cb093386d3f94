"""The copies of a network that search works on: packed weights on a CPU, slots on a GPU."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Self

import torch

from transduce.decoding.cuda.pool import CudaSearch
from transduce.errors import ModelError
from transduce.models import TrainableNetwork
from transduce.models.hooks import is_gated, is_watched, watch_warnings
from transduce.models.trainable import modules_of
from transduce.runtime.packed_copy import PackedCopy
from transduce.runtime.packed_weight import KINDS
from transduce.runtime.steps import gains_by_packing
from transduce.tasks.model import Model

MAKING = threading.RLock()  # held while a copy is made: threads may use a model at the same time


class SearchCopies(Model):
    """A model and the precision of its search.

    Copies are made when they are needed, and dropped when weights, device or precision change.
    """

    _warned_of_gates = False

    def compute_in(self, precision: str) -> Self:
        """Set the precision of search: auto, float32, bfloat16, or int8 on a CPU.

        auto: float32 on a CPU; on a GPU with bfloat16, bfloat16 for plain search without
        constraints. Scores of given targets and attention weights are always computed in float32.
        """
        known = ("auto", *KINDS)
        if precision not in known:
            raise ModelError(f"precision is {precision}; it must be one of {', '.join(known)}")
        self.precision = precision
        self._drop_copies()
        return self

    def to(self, device: str | torch.device) -> Self:
        self._drop_copies()
        return super().to(device)

    def load_weights(self, path: Path) -> str:
        self._drop_copies()
        return super().load_weights(path)

    def _weights_changed(self) -> None:
        self._drop_copies()

    def _drop_copies(self) -> None:
        """Drop the copies of the network that search made: weights or device have changed."""
        self._fast: CudaSearch | None = None
        self._packed: PackedCopy[TrainableNetwork] | None = None

    @property
    def _search_network(self) -> TrainableNetwork:
        """The network that search uses: on a CPU a copy with packed weights."""
        packed = self._packed_copy()
        return self.network if packed is None else packed.network

    def _packed_copy(self) -> PackedCopy[TrainableNetwork] | None:
        """The copy with packed weights, and its steps; None where search uses the network."""
        if self.device.type != "cpu":
            if self.precision == "int8":
                raise ModelError(
                    f"int8 needs a CPU, and the model is on {self.device}; use bfloat16"
                )
            return None
        if self.engine:  # it has its own search
            return None
        kind = "float32" if self.precision == "auto" else self.precision
        if kind == "float32" and not gains_by_packing(self.network):
            return None
        if kind != "float32" and not self.network.as_built:
            raise ModelError(
                f"{kind} needs a network as the recipe builds it, and this one was changed; use "
                f"float32"
            )
        with MAKING:
            if self._packed is None:
                self._packed = PackedCopy(self.network, kind)
            return self._packed

    def _check_packed(self) -> None:
        """Drop the packed copy if the weights have changed; once per search: it reads them all."""
        packed = self._packed
        if packed is None or (self.frozen and not self.network.training):
            return
        if not packed.fits(self.network):
            self._packed = None

    def _is_watched(self) -> bool:
        """Whether the network has a lens or forward hooks: search then calls every module."""
        modules = modules_of(self.network)
        if not is_watched(modules):
            return False
        for message in watch_warnings(self.network, gates=not self._warned_of_gates):
            warnings.warn(message, stacklevel=5)
        self._warned_of_gates |= is_gated(modules)
        return True
