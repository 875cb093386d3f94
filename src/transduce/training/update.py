"""One update of the weights: gradients of its batches, clipped, applied.

On a GPU, starting each of a few thousand small kernels takes longer than running it. Packed batches
are filled up to round sizes, so the same shapes come again and again: the second time a shape
comes, its forward and backward pass are recorded as a CUDA graph, and from then on started by one
call.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from transduce.data.batches.batch import Batch
from transduce.data.batches.packing import Packed, Shape, pack, packed_padding
from transduce.models import TrainableNetwork
from transduce.nn.loss.cross_entropy import Loss
from transduce.nn.mixed_precision import CastCopies
from transduce.recipe import Train
from transduce.training.distributed.processes import Processes
from transduce.training.log_window import Passed
from transduce.training.memory.out_of_memory import MemoryShortage, out_of_memory
from transduce.training.nan_guard import unusable

MOST_GRAPHS = 256


@dataclass
class Update:
    """Gradients and a step of the optimizer, one operation after the other."""

    network: TrainableNetwork
    optimizer: torch.optim.Optimizer
    settings: Train
    precision: torch.dtype
    ranks: Processes = field(default_factory=Processes)
    shortage: MemoryShortage = field(default_factory=MemoryShortage)
    _weights: list[Tensor] = field(default_factory=list, init=False)
    _casts: CastCopies | None = field(default=None, init=False)
    """bfloat16 copies of the weights, on a GPU."""

    def __post_init__(self) -> None:
        self.skip = torch.zeros((), device=self.device)
        """1.0 where the gradients at hand must not be applied."""
        # AdamW's own way to leave everything as it is, without anyone waiting for the device.
        self.optimizer.found_inf = self.skip  # type: ignore[attr-defined]
        self._weights = [p for p in self.network.parameters() if p.requires_grad]
        if self.precision == torch.bfloat16 and self.device.type == "cuda":
            self._casts = CastCopies(self._weights, self.precision)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def __call__(self, batches: list[Batch], tokens: int | None = None) -> Passed:
        """The summed losses of the batches and the norm of their gradient, not waited for.

        All are of the batches of all processes; `tokens` counts those, where there are others.
        Where memory does not suffice, all is done again with the batch that failed in halves.
        """
        own = sum(batch.target_tokens for batch in batches)
        others = 0 if tokens is None else tokens - own
        pieces = self.shortage.beforehand(batches)
        while (losses := self._pass_over(pieces, others)) is None:
            self.free()
        nothing = torch.full((2,), math.nan, dtype=torch.float64, device=self.device)
        total = torch.stack(losses).sum(dim=0) if losses else nothing
        self.add_up(total)
        norm = self.clip().to(self.device)
        self.skip.copy_(unusable(total[0], norm))
        return Passed(total[0], norm, total[1])

    def _pass_over(self, batches: list[Batch], others: int) -> list[Tensor] | None:
        """Every batch's losses; None if one did not fit, which is then cut in the list itself."""
        tokens = others + sum(batch.target_tokens for batch in batches)
        losses = []
        for number, batch in enumerate(batches):
            try:
                losses.append(self.gradients(batch, tokens))
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                batches[number : number + 1] = self.shortage.failed(batch)
                return None
        return losses

    def add_up(self, total: Tensor) -> None:
        """Sum the gradients, and the losses, over all processes; one without any has zeros."""
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        if self.ranks.count > 1:
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        self.ranks.add_up([p.grad for p in parameters if p.grad is not None])
        self.ranks.add_up([total])

    def clip(self) -> Tensor:
        """The norm of the gradient before it was clipped."""
        largest = self.settings.clip_norm or math.inf
        return torch.nn.utils.clip_grad_norm_(self.network.parameters(), largest)

    @property
    def applied(self) -> Tensor | float:
        """1.0 if `apply` changed the weights, else 0.0; on the device, not waited for."""
        return 1.0 - self.skip

    def apply(self) -> None:
        """Change the weights, unless the gradients are unusable."""
        self.optimizer.step()
        self.forget()

    def forget(self) -> None:
        """No gradient is left."""
        self.optimizer.zero_grad(set_to_none=True)

    def free(self) -> None:
        """Give back what a pass that failed has left behind: half a gradient, cached memory."""
        self.forget()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def gradients(self, batch: Batch, tokens: float) -> Tensor:
        """Add one batch's share in the update's mean loss.

        Its summed objective and cross-entropy, detached: two numbers of one pass.
        """
        settings = self.settings
        moved = (batch.twice() if settings.r_drop else batch).to(self.device)
        with self._casting(), self._autocast():
            loss = self.network.batch_loss(moved, settings.label_smoothing, settings.r_drop)
        (loss.total / tokens).backward()  # type: ignore[no-untyped-call]
        return _sums(loss)

    def padding_share(self, batch: Batch) -> float:
        """Share of padding among the places that are computed."""
        return batch.padding_share

    def _casting(self) -> AbstractContextManager[None]:
        """A kernel that casts all weights at once, in place of hundreds of small ones."""
        return nullcontext() if self._casts is None else self._casts.active()

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

    _seen: Counter[tuple[Shape, bool]] = field(default_factory=Counter)
    _recorded: dict[tuple[Shape, bool], _Recorded] = field(default_factory=dict)
    _packable: dict[int, bool] = field(default_factory=dict)
    _pool: object | None = None
    """Graphs run one after the other: one memory serves them all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Recorded passes read and write these very tensors.
        self._gradients = [torch.zeros_like(weight) for weight in self._weights]
        for weight, gradient in zip(self._weights, self._gradients, strict=True):
            weight.grad = gradient
        self._empty = True
        """Whether the next pass is the first of its update."""

    def forget(self) -> None:
        self._empty = True  # no need to write zeros: the next pass writes over what is there

    def add_up(self, total: Tensor) -> None:
        self._zero()
        super().add_up(total)

    def _zero(self) -> None:
        """Make true what `forget` has only said."""
        if self._empty:
            self.optimizer.zero_grad(set_to_none=False)
            self._empty = False

    def free(self) -> None:
        # Each graph keeps its memory as long as it lives; shapes that still come are recorded anew.
        self._recorded.clear()
        self._seen.clear()
        self._pool = None
        super().free()

    def gradients(self, batch: Batch, tokens: float) -> Tensor:
        packed = pack(batch, copies=2 if self.settings.r_drop else 1)
        if not self._packs(packed.shape.longest):
            self._zero()
            return super().gradients(batch, tokens)
        kind = (packed.shape, self._empty)
        self._seen[kind] += 1
        flat = packed.flat.pin_memory().to(self.device, non_blocking=True)
        recorded = self._recorded.get(kind)
        if recorded is None:
            full = len(self._recorded) >= MOST_GRAPHS
            if full or self._seen[kind] < 2:
                return self._backward(replace(packed, flat=flat), 1.0 / tokens)
            recorded = self._recorded[kind] = self._record(packed)
        self._empty = False
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
        with self._casting(), self._autocast():
            loss = self.network.packed_loss(
                packed, self.settings.label_smoothing, self.settings.r_drop
            )
        found = torch.autograd.grad(loss.total * scale, self._weights)
        if self._empty:
            torch._foreach_copy_(self._gradients, found)
        else:
            torch._foreach_add_(self._gradients, found)
        self._empty = False
        return _sums(loss)

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


def _sums(loss: Loss) -> Tensor:
    return torch.stack([loss.total.detach(), loss.nll]).double()


def build_update(
    network: TrainableNetwork,
    optimizer: torch.optim.Optimizer,
    settings: Train,
    precision: torch.dtype,
    ranks: Processes | None = None,
) -> Update:
    """Packed and recorded where that can be, else one padded batch after the other."""
    on_gpu = next(network.parameters()).is_cuda
    kind = PackedUpdate if on_gpu and precision == torch.bfloat16 and network.packs(1) else Update
    return kind(network, optimizer, settings, precision, ranks or Processes())
