"""Work on a GPU that is recorded once as a CUDA graph and replayed by one call."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from transduce.models import EncoderDecoder


class Recorded:
    """Work on tensors at fixed addresses; on a GPU the second call records it as a CUDA graph."""

    def __init__(self, work: Callable[[], None], network: EncoderDecoder) -> None:
        self.work, self.network = work, network
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._read: list[Tensor] = []

    def __call__(self) -> None:
        self._calls += 1
        device = self.network.head.weight.device
        if device.type != "cuda" or self._calls == 1:  # the first call compiles the kernels
            self.work()
            return
        if self._graph is None:
            torch.cuda.synchronize(device)
            self._graph = torch.cuda.CUDAGraph()
            # thread_local: what another thread does with the device does not end the recording.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self.work()
            # A position table that grows is replaced; the graph still reads the old one.
            self._read = list(self.network.buffers())
        self._graph.replay()

    def free(self) -> None:
        """Free the graph now: the garbage collector might do so while another is recorded."""
        if self._graph is not None:
            torch.cuda.synchronize(self.network.head.weight.device)
            self._graph.reset()
        self._graph, self._calls = None, 0
