"""One update of the weights: gradients of its batches, clipped, applied.

On a GPU, starting each of a few thousand small kernels takes longer than running it. Packed batches
are filled up to round sizes, so the same shapes come again and again: the second time a shape
comes, its forward and backward pass are recorded as a CUDA graph, and from then on started by one
call.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from transduce.data.batches import Batch
from transduce.data.packing import Packed, Shape, pack, packed_padding
from transduce.models import Network
from transduce.recipe import Train

MOST_GRAPHS = 256


@dataclass
class Update:
    """Gradients and a step of the optimizer, one operation after the other."""

    network: Network
    optimizer: torch.optim.Optimizer
    settings: Train
    precision: torch.dtype

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def __call__(self, batches: list[Batch]) -> tuple[Tensor, Tensor]:
        """The summed loss of the batches and the norm of their gradient, not waited for."""
        tokens = sum(batch.target_tokens for batch in batches)
        losses = [self.gradients(batch, tokens) for batch in batches]
        norm = torch.nn.utils.clip_grad_norm_(
            self.network.parameters(), self.settings.clip or math.inf
        )
        return torch.stack(losses).sum(), norm

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self, batch: Batch, tokens: int) -> Tensor:
        """Add one batch's share in the update's mean loss; its summed loss, detached."""
        moved = batch.to(self.device)
        assert moved.target_BT is not None
        with self._autocast():
            loss = self.network.loss(
                moved.source_BS, moved.source_lengths_B, moved.target_BT, self.settings.smoothing
            )
        (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
        return loss.total.detach().double()

    def padding_share(self, batch: Batch) -> float:
        """Share of padding among the places that are computed."""
        return batch.padding_share

    def _autocast(self) -> torch.autocast:
        half = self.precision != torch.float32
        return torch.autocast(self.device.type, dtype=self.precision, enabled=half)


@dataclass
class _Recorded:
    """A graph, and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    packed: Packed
    scale: Tensor
    loss: Tensor
    buffers: list[Tensor]
    """Held, as a table of positions that grows is replaced, and the graph reads the old one."""


@dataclass
class PackedUpdate(Update):
    """The same without padding, each shape's passes recorded once and replayed."""

    _seen: Counter[Shape] = field(default_factory=Counter)
    _recorded: dict[Shape, _Recorded] = field(default_factory=dict)
    _packable: dict[int, bool] = field(default_factory=dict)
    _pool: object | None = None
    """Graphs run one after the other: one memory serves them all."""

    def __post_init__(self) -> None:
        for parameter in self.network.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # recorded passes add to these very tensors

    def gradients(self, batch: Batch, tokens: int) -> Tensor:
        packed = pack(batch)
        if not self._packs(packed.shape.longest):
            return super().gradients(batch, tokens)
        self._seen[packed.shape] += 1
        flat = packed.flat.pin_memory().to(self.device, non_blocking=True)
        recorded = self._recorded.get(packed.shape)
        if recorded is None:
            full = len(self._recorded) >= MOST_GRAPHS
            if full or self._seen[packed.shape] < 2:
                return self._backward(replace(packed, flat=flat), 1.0 / tokens)
            recorded = self._recorded[packed.shape] = self._record(packed)
        recorded.packed.flat.copy_(flat)
        recorded.scale.fill_(1.0 / tokens)
        recorded.graph.replay()
        return recorded.loss.clone()

    def padding_share(self, batch: Batch) -> float:
        return packed_padding(batch)

    def _packs(self, longest: int) -> bool:
        if longest not in self._packable:
            self._packable[longest] = self.network.packs(longest)
        return self._packable[longest]

    def _backward(self, packed: Packed, scale: Tensor | float) -> Tensor:
        with self._autocast():
            loss = self.network.packed_loss(packed, self.settings.smoothing)
        (loss.total * scale).backward()  # type: ignore[no-untyped-call]
        return loss.total.detach().double()

    def _record(self, packed: Packed) -> _Recorded:
        """Recording computes nothing; what it would have added comes with the first replay."""
        still = replace(packed, flat=torch.empty_like(packed.flat, device=self.device))
        scale = torch.zeros((), device=self.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph, pool=self._pool):  # type: ignore[arg-type]
            loss = self._backward(still, scale)
        self._pool = self._pool or graph.pool()
        return _Recorded(graph, still, scale, loss, list(self.network.buffers()))


def build_update(
    network: Network,
    optimizer: torch.optim.Optimizer,
    settings: Train,
    precision: torch.dtype,
) -> Update:
    """Packed and recorded where that can be, else one padded batch after the other."""
    on_gpu = next(network.parameters()).is_cuda
    kind = PackedUpdate if on_gpu and precision == torch.bfloat16 and network.packs(1) else Update
    return kind(network, optimizer, settings, precision)
