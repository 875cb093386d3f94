"""The copies of a network that search works on: packed weights on a CPU, slots on a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from transduce.decoding.cuda.pool import CudaSearch
from transduce.errors import ModelError
from transduce.hardware import pick_precision
from transduce.models import EncoderDecoder, TrainableNetwork
from transduce.runtime.fallbacks import warn_of_torch_steps
from transduce.runtime.packed_copy import PackedCopy
from transduce.runtime.packed_weight import KINDS
from transduce.runtime.steps import gains_by_packing

PRECISIONS = ("auto", *KINDS)
_MAKING = threading.RLock()  # held while a copy is made: threads may use a model at the same time


class SearchCopies:
    """Copies in one precision, each made when it is first needed.

    They keep no model: one whose weights, device or precision change takes new copies, and those of
    a model that was copied are shared.
    """

    def __init__(self, precision: str) -> None:
        if precision not in PRECISIONS:
            raise ModelError(f"precision is {precision}; it must be one of {', '.join(PRECISIONS)}")
        self.precision = precision
        self._packed: tuple[TrainableNetwork, PackedCopy[TrainableNetwork]] | None = None
        self._cuda: CudaSearch | None = None

    def packed(
        self, network: TrainableNetwork, file: Path | None = None
    ) -> PackedCopy[TrainableNetwork] | None:
        """The copy with packed weights; None where search uses the network itself.

        file: that the weights were read from, of a network that no longer changes.
        """
        device = device_of(network)
        if device.type != "cpu":
            if self.precision == "int8":
                raise ModelError(f"int8 needs a CPU, and the model is on {device}; use bfloat16")
            return None
        kind = "float32" if self.precision == "auto" else self.precision
        if kind == "float32" and not gains_by_packing(network):
            return None
        if kind != "float32" and not network.as_built:
            raise ModelError(
                f"{kind} needs a network as the recipe builds it, and this one was changed; use "
                f"float32"
            )
        with _MAKING:
            if self._packed is None or self._packed[0] is not network:
                self._packed = network, PackedCopy(network, kind, file)
            return self._packed[1]

    def steps(
        self, network: TrainableNetwork, make: Callable[[Any], Any], file: Path | None = None
    ) -> Any:
        """The steps that `make` makes of the packed copy, once; None without such a copy. file: as
        in `packed`."""
        copy = self.packed(network, file)
        if copy is None:
            return None
        with _MAKING:
            if copy.steps is None:
                copy.steps = make(copy.network)
                warn_of_torch_steps(copy.network)
            return copy.steps

    def check(self, network: TrainableNetwork) -> None:
        """Drop the packed copy if the weights have changed; once per search: it reads them all."""
        packed = self._packed
        if packed is not None and not packed[1].fits(network):
            self._packed = None

    def cuda(self, network: EncoderDecoder, width: int) -> CudaSearch:
        """Search with CUDA graphs, on a GPU."""
        with _MAKING:
            if self._cuda is None or self._cuda.network is not network:
                kind = pick_precision(self.precision, device_of(network), width)
                self._cuda = CudaSearch(network, kind)
            return self._cuda


def device_of(network: TrainableNetwork) -> torch.device:
    return next(network.parameters()).device
