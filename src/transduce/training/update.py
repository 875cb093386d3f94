"""One update of the weights: gradient accumulation over its batches, clipping, optimizer step.

On a GPU, launching each of a few thousand small kernels takes longer than running it. Packed
batches are filled up to round sizes, so the same shapes recur: the second time a shape comes, its
forward and backward pass are captured as a CUDA graph, and from then on replayed by one call.
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
from transduce.memory import out_of_memory
from transduce.models import TrainableNetwork
from transduce.nn.loss import Loss
from transduce.nn.mixed_precision import CastCopies
from transduce.nn.torch_private import AdamW, add_all, copy_all, multiply_all
from transduce.recipe import Recipe, Train
from transduce.training.distributed.processes import Processes
from transduce.training.log_window import UpdateResult
from transduce.training.memory.out_of_memory import BatchSplitter
from transduce.training.muon import Muon
from transduce.training.nan_guard import nonfinite

MOST_GRAPHS = 256


@dataclass
class Update:
    """Gradients and an optimizer step, one operation after the other."""

    network: TrainableNetwork
    optimizer: torch.optim.Optimizer
    settings: Train
    precision: torch.dtype
    ranks: Processes = field(default_factory=Processes)
    splitter: BatchSplitter = field(default_factory=BatchSplitter)
    _weights: list[Tensor] = field(default_factory=list, init=False)
    _casts: CastCopies | None = field(default=None, init=False)
    """bfloat16 copies of the weights, on a GPU."""

    def __post_init__(self) -> None:
        self.skip = torch.zeros((), device=self.device)
        """1.0 if the current gradients are NaN or infinite and must not be applied."""
        # AdamW's own way to skip an update, without synchronising with the device. A plugin's
        # optimizer may have none: `apply` asks for it, which waits for the device.
        self._skips_by_itself = isinstance(self.optimizer, AdamW | Muon)
        if self._skips_by_itself:
            self.optimizer.found_inf = self.skip  # type: ignore[attr-defined]
        self._weights = [p for p in self.network.parameters() if p.requires_grad]
        if self.precision == torch.bfloat16 and self.device.type == "cuda":
            self._casts = CastCopies(self._weights, self.precision)

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def __call__(self, batches: list[Batch]) -> UpdateResult:
        """The summed losses of the batches and the gradient norm, without synchronising.

        They are sums over the batches of all ranks. The gradient is that of the mean over the
        tokens that the losses have scored, on all ranks; only the losses know how many these are.
        If memory runs out, everything is repeated with the failed batch in halves.
        """
        pieces = self.splitter.split_in_advance(batches)
        while (losses := self._forward_backward(pieces)) is None:
            self.free()
        nothing = torch.zeros(3, dtype=torch.float64, device=self.device)
        total = torch.stack(losses).sum(dim=0) if losses else nothing
        self.all_reduce(total)
        return self._mean(total, 1.0)

    def _mean(self, total: Tensor, share: float) -> UpdateResult:
        """Turn the summed gradients into those of the mean loss, and clip them.

        total: objective, cross-entropy and scored tokens of all ranks. share: of the summed
        gradients that each rank holds.
        """
        objective, cross_entropy, tokens = total
        # An update of no tokens has no mean: NaN, and it is skipped.
        objective = torch.where(tokens > 0, objective, math.nan)
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        if gradients:
            multiply_all(gradients, (1 / (share * tokens)).to(gradients[0].dtype))
        norm = self.clip().to(self.device)
        self.skip.copy_(nonfinite(objective, norm))
        return UpdateResult(objective, norm, cross_entropy, tokens)

    def _forward_backward(self, batches: list[Batch]) -> list[Tensor] | None:
        """The losses of every batch; None if one ran out of memory, which is then split in the list
        itself.
        """
        losses = []
        for number, batch in enumerate(batches):
            try:
                losses.append(self.gradients(batch))
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
                batches[number : number + 1] = self.splitter.failed(batch)
                return None
        return losses

    def all_reduce(self, total: Tensor) -> None:
        """All-reduce gradients and losses over the ranks; a rank without batches adds zeros."""
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        if self.ranks.count > 1:
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        self.ranks.all_reduce([p.grad for p in parameters if p.grad is not None])
        self.ranks.all_reduce([total])

    def clip(self) -> Tensor:
        """Gradient clipping; returns the norm before it."""
        largest = self.settings.clip_norm or math.inf
        return torch.nn.utils.clip_grad_norm_(self.network.parameters(), largest)

    @property
    def applied(self) -> Tensor | float:
        """1.0 if `apply` changed the weights, else 0.0; on the device, not synchronised."""
        return 1.0 - self.skip

    def apply(self) -> None:
        """Optimizer step, unless the gradients are NaN or infinite."""
        if self._skips_by_itself or not bool(self.skip):
            self.optimizer.step()
        self.zero_gradients()

    def zero_gradients(self) -> None:
        """Discard the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def free(self) -> None:
        """Free what a failed pass has left: partial gradients, cached memory."""
        self.zero_gradients()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def gradients(self, batch: Batch, weight: float = 1.0) -> Tensor:
        """Forward and backward pass of one batch: adds the gradient of its summed loss.

        Returns its summed objective and cross-entropy and its scored tokens, detached.
        """
        with self._casting(), self._autocast():
            loss = self.loss(batch)
        (loss.total * weight).backward()  # type: ignore[no-untyped-call]
        return sums_of(loss)

    def loss(self, batch: Batch) -> Loss:
        """The objective of one batch."""
        settings = self.settings
        moved = (batch.twice() if settings.r_drop else batch).to(self.device)
        return self.network.batch_loss(moved, settings.label_smoothing, settings.r_drop)

    def padding_share(self, batch: Batch) -> float:
        """Share of padding among the computed positions."""
        return batch.padding_share

    def _casting(self) -> AbstractContextManager[None]:
        """Cast all weights in one kernel, in place of hundreds of small ones."""
        return nullcontext() if self._casts is None else self._casts.active()

    def _autocast(self) -> torch.autocast:
        half = self.precision != torch.float32
        return torch.autocast(self.device.type, dtype=self.precision, enabled=half)


@dataclass
class _CapturedGraph:
    """A captured CUDA graph, and the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    packed: Packed
    loss: Tensor
    buffers: list[Tensor]
    """Kept alive: a growing table of positions is replaced, but the graph reads the old one."""


@dataclass
class PackedUpdate(Update):
    """The same without padding (sequence packing), with a CUDA graph for each shape."""

    _seen: Counter[tuple[Shape, bool]] = field(default_factory=Counter)
    _graphs: dict[tuple[Shape, bool], _CapturedGraph] = field(default_factory=dict)
    _packable: dict[int, bool] = field(default_factory=dict)
    _pool: object | None = None
    """Graphs run one after the other, so they share one memory pool."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # CUDA graphs read and write these very tensors.
        self._gradients = [torch.zeros_like(weight) for weight in self._weights]
        for weight, gradient in zip(self._weights, self._gradients, strict=True):
            weight.grad = gradient
        if isinstance(self.optimizer, Muon):
            self.optimizer.same_gradients = True
        self._empty = True
        """Whether the next pass is the first of its update."""

    def zero_gradients(self) -> None:
        self._empty = True  # no need to write zeros: the next pass overwrites the gradients

    def all_reduce(self, total: Tensor) -> None:
        self._zero()
        super().all_reduce(total)

    def _zero(self) -> None:
        """Write the zeros that `zero_gradients` has only noted."""
        if self._empty:
            self.optimizer.zero_grad(set_to_none=False)
            self._empty = False

    def free(self) -> None:
        # Each graph keeps its memory while it exists; shapes that still come are captured again.
        self._graphs.clear()
        self._seen.clear()
        self._pool = None
        super().free()

    def gradients(self, batch: Batch, weight: float = 1.0) -> Tensor:
        packed = pack(batch, copies=2 if self.settings.r_drop else 1)
        if not self._packs(packed.shape.longest):
            self._zero()
            return super().gradients(batch, weight)
        kind = (packed.shape, self._empty)
        self._seen[kind] += 1
        flat = packed.flat.pin_memory().to(self.device, non_blocking=True)
        captured = self._graphs.get(kind)
        if captured is None:
            full = len(self._graphs) >= MOST_GRAPHS
            if full or self._seen[kind] < 2:
                return self._backward(replace(packed, flat=flat))
            captured = self._graphs[kind] = self._capture(packed)
        self._empty = False
        captured.packed.flat.copy_(flat)
        captured.graph.replay()
        return captured.loss.clone()

    def padding_share(self, batch: Batch) -> float:
        return packed_padding(batch)

    def _packs(self, longest: int) -> bool:
        if longest not in self._packable:
            self._packable[longest] = self.network.packs(longest)
        return self._packable[longest]

    def _backward(self, packed: Packed) -> Tensor:
        with self._casting(), self._autocast():
            loss = self.network.packed_loss(
                packed, self.settings.label_smoothing, self.settings.r_drop
            )
        found = torch.autograd.grad(loss.total, self._weights)
        if self._empty:
            copy_all(self._gradients, found)
        else:
            add_all(self._gradients, found)
        self._empty = False
        return sums_of(loss)

    def _capture(self, packed: Packed) -> _CapturedGraph:
        """Capture a pass as a CUDA graph. Capturing computes nothing; the first replay does."""
        still = replace(packed, flat=torch.empty_like(packed.flat, device=self.device))
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self.device)
        with torch.cuda.graph(graph, pool=self._pool):  # type: ignore[arg-type]
            loss = self._backward(still)
        self._pool = self._pool or graph.pool()
        return _CapturedGraph(graph, still, loss, list(self.network.buffers()))


def sums_of(loss: Loss) -> Tensor:
    """The objective, the cross-entropy and the scored tokens of a batch, detached."""
    return torch.stack([loss.total.detach().double(), loss.nll.double(), loss.tokens.double()])


def why_padded(
    network: TrainableNetwork, settings: Train, precision: torch.dtype, sharded: bool = False
) -> str | None:
    """Why batches are padded on a GPU, and not packed and replayed as CUDA graphs; None where they
    are packed, and on a CPU.
    """
    if not next(network.parameters()).is_cuda:
        return None
    if sharded:
        return "the weights are sharded (train.fsdp)"
    if settings.teacher is not None:
        return "a teacher reads them too (train.teacher)"
    if settings.checkpoint_activations:
        return "activations are recomputed (train.checkpoint_activations)"
    if precision != torch.bfloat16:
        return f"the precision is {str(precision).removeprefix('torch.')}, and not bfloat16"
    return None if network.packs(1) else "this network has no kernels for packed sequences"


def padding_notice(
    network: TrainableNetwork, recipe: Recipe, precision: torch.dtype, sharded: bool
) -> list[str]:
    """That batches are padded, and why, where other settings would pack them. Speech is always
    padded: nobody could change that."""
    if recipe.audio is not None:
        return []
    if why := why_padded(network, recipe.train, precision, sharded):
        return [f"Batches are padded, which is slower than packing them: {why}."]
    return []


def build_update(
    network: TrainableNetwork,
    optimizer: torch.optim.Optimizer,
    settings: Train,
    precision: torch.dtype,
    ranks: Processes | None = None,
) -> Update:
    """Packed, with CUDA graphs, where possible; else one padded batch after the other.

    Activation checkpointing restores random generators, which a CUDA graph cannot.
    """
    packs = next(network.parameters()).is_cuda and why_padded(network, settings, precision) is None
    kind = PackedUpdate if packs else Update
    return kind(network, optimizer, settings, precision, ranks or Processes())
