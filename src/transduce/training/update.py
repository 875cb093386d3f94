"""One update of the weights: gradients of its batches, clipped, applied.

On a GPU, starting each of a few thousand small kernels takes longer than running it. Batches are
cut by length, so the same shapes come again in every epoch: the second time a shape comes, its
forward and backward pass are recorded as a CUDA graph, and from then on started by one call.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

from transduce.data.batches import Batch
from transduce.models import Network
from transduce.models.memory import padding_mask
from transduce.nn.masks import Mask
from transduce.recipe import Train
from transduce.training.ranks import Ranks

MOST_GRAPHS = 256


@dataclass
class Update:
    """Gradients and a step of the optimizer, one operation after the other."""

    network: Network
    optimizer: torch.optim.Optimizer
    settings: Train
    precision: torch.dtype
    ranks: Ranks = field(default_factory=Ranks)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def __call__(self, batches: list[Batch], tokens: int | None = None) -> tuple[Tensor, Tensor]:
        """The summed loss of the batches and the norm of their gradient, not waited for.

        Both are of the batches of all processes; `tokens` counts those, where there are others.
        """
        tokens = tokens or sum(batch.target_tokens for batch in batches)
        losses = [self.gradients(batch, tokens) for batch in batches]
        total = torch.stack(losses).sum()
        self.add_up(total)
        return total, self.clip()

    def add_up(self, total: Tensor) -> None:
        """Sum the gradients, and the loss, over all processes; one without any has zeros."""
        parameters = list(self.network.parameters())
        if self.ranks.count > 1:
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        self.ranks.add_up([p.grad for p in parameters if p.grad is not None])
        self.ranks.add_up([total])

    def clip(self) -> Tensor:
        """The norm of the gradient before it was clipped."""
        largest = self.settings.clip or math.inf
        return torch.nn.utils.clip_grad_norm_(self.network.parameters(), largest)

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self, batch: Batch, tokens: float) -> Tensor:
        """Add one batch's share in the update's mean loss; its summed loss, detached."""
        batch = batch.to(self.device)
        assert batch.target_BT is not None
        return self._backward(
            batch.source_BS, batch.source_lengths_B, batch.target_BT, None, 1.0 / tokens
        )

    def _backward(
        self,
        source_BS: Tensor,
        lengths_B: Tensor,
        target_BT: Tensor,
        mask: Mask | None,
        scale: Tensor | float,
    ) -> Tensor:
        half = self.precision != torch.float32
        with torch.autocast(self.device.type, dtype=self.precision, enabled=half):
            loss = self.network.loss(source_BS, lengths_B, target_BT, self.settings.smoothing, mask)
        (loss.total * scale).backward()  # type: ignore[no-untyped-call]
        return loss.total.detach().double()


@dataclass
class _Recorded:
    """A graph, and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    source_BS: Tensor
    target_BT: Tensor
    visible_BTS: Tensor | None
    scale: Tensor
    loss: Tensor


@dataclass
class RecordedUpdate(Update):
    """The same, with each shape's passes recorded once and replayed; for Transformers on a GPU."""

    _seen: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _recorded: dict[tuple[object, ...], _Recorded] = field(default_factory=dict)
    _pool: object | None = None
    """Graphs run one after the other: one memory serves them all."""

    def __post_init__(self) -> None:
        for parameter in self.network.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def apply(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)  # recorded passes add to these very tensors

    def gradients(self, batch: Batch, tokens: float) -> Tensor:
        assert batch.target_BT is not None
        padded = int(batch.source_lengths_B.min()) < batch.source_BS.shape[1]
        key = (batch.source_BS.shape, batch.target_BT.shape, padded)
        self._seen[key] += 1
        recorded = self._recorded.get(key)
        if recorded is None:
            full = len(self._recorded) >= MOST_GRAPHS
            if full or self._seen[key] < 2:
                return super().gradients(batch, tokens)
            recorded = self._recorded[key] = self._record(batch)
        moved = batch.to(self.device)
        assert moved.target_BT is not None
        recorded.source_BS.copy_(moved.source_BS)
        recorded.target_BT.copy_(moved.target_BT)
        if recorded.visible_BTS is not None:
            mask = padding_mask(batch.source_lengths_B, batch.source_BS.shape[1], self.device)
            assert mask is not None
            assert mask.visible_BTS is not None
            recorded.visible_BTS.copy_(mask.visible_BTS)
        recorded.scale.fill_(1.0 / tokens)
        recorded.graph.replay()
        return recorded.loss.clone()

    def _record(self, batch: Batch) -> _Recorded:
        """Recording computes nothing; what it would have added comes with the first replay."""
        assert batch.target_BT is not None
        source_BS = torch.empty_like(batch.source_BS, device=self.device)
        target_BT = torch.empty_like(batch.target_BT, device=self.device)
        lengths_B = batch.source_lengths_B
        mask = padding_mask(lengths_B, source_BS.shape[1], self.device)
        visible_BTS = None
        if mask is not None and mask.visible_BTS is not None:
            visible_BTS = mask.visible_BTS.clone()
            mask = Mask(visible_BTS=visible_BTS)
        scale = torch.zeros((), device=self.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph, pool=self._pool):  # type: ignore[arg-type]
            loss = self._backward(source_BS, lengths_B, target_BT, mask, scale)
        self._pool = self._pool or graph.pool()
        return _Recorded(graph, source_BS, target_BT, visible_BTS, scale, loss)


def build_update(
    network: Network,
    optimizer: torch.optim.Optimizer,
    settings: Train,
    precision: torch.dtype,
    ranks: Ranks,
) -> Update:
    """Recorded where that is faster, else one operation after the other."""
    on_gpu = next(network.parameters()).is_cuda
    kind = RecordedUpdate if on_gpu and network.records else Update
    return kind(network, optimizer, settings, precision, ranks)
