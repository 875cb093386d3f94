"""One update of the weights: gradient accumulation over its batches, clipping, optimizer step.

On a GPU, launching each of a few thousand small kernels takes longer than running it. Batches,
packed or padded, are filled up to round sizes, so the same shapes recur: the second time a shape
comes, its forward and backward pass are captured as a CUDA graph, and from then on replayed by one
call. So is what follows the passes: the mean and the clipping of gradients, and the optimizer with
the moving average.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from transduce.data.batches.batch import Batch
from transduce.data.batches.packing import Packed, pack, packed_padding
from transduce.garbage import no_garbage_collection
from transduce.memory import out_of_memory
from transduce.models import TrainableNetwork
from transduce.models.hooks import is_watched
from transduce.models.speech import SpeechFrontend
from transduce.models.trainable import SpeechLosses
from transduce.models.transducer import SpeechTransducer
from transduce.nn.attention.attention import Location
from transduce.nn.loss import Loss
from transduce.nn.mixed_precision import CastCopies
from transduce.nn.pass_buffers import pass_buffers
from transduce.nn.positions import Learned
from transduce.nn.torch_private import AdamW, add_all, copy_all, give_back, multiply_all
from transduce.recipe import Train
from transduce.training.distributed.gradients import GradientExchange
from transduce.training.distributed.processes import Processes
from transduce.training.log_window import UpdateResult
from transduce.training.muon import Muon
from transduce.training.nan_guard import nonfinite
from transduce.training.optimizer import MovingAverage
from transduce.training.out_of_memory import BatchSplitter

MAX_GRAPHS = 256
OWN = ("transduce", "torch")  # packages whose modules do not wait for a GPU in training
NO_ROOM = (
    "There is no memory for a CUDA graph of the optimizer: it runs without, which is slower; use "
    "half of train.batch_tokens and twice the train.accumulate."
)
WARM_UP = 3  # calls before a CUDA graph is captured, which initialise libraries and moments


@dataclass
class Update:
    """Gradients and an optimizer step, one operation after the other."""

    network: TrainableNetwork
    optimizer: torch.optim.Optimizer
    settings: Train
    precision: torch.dtype
    ranks: Processes = field(default_factory=Processes)
    splitter: BatchSplitter = field(default_factory=BatchSplitter)
    average: MovingAverage | None = None
    """Follows the weights at every `apply`."""
    objective: Callable[[Batch], Loss] | None = None
    """The loss of a batch that is where the network is; None: the network's own."""
    notices: list[str] = field(default_factory=list, init=False)
    """What a user should know, and was not told yet."""
    _weights: list[Tensor] = field(default_factory=list, init=False)
    _casts: CastCopies | None = field(default=None, init=False)
    """bfloat16 copies of the weights, on a GPU."""

    def __post_init__(self) -> None:
        # Once: walking along all modules takes longer than launching the kernels of a step.
        self._weights = [p for p in self.network.parameters() if p.requires_grad]
        self.device = next(self.network.parameters()).device
        self.exchange = GradientExchange(self._weights, self.ranks)
        self.skip = torch.zeros((), device=self.device)
        """1.0 if the current gradients are NaN or infinite and must not be applied."""
        # AdamW's own way to skip an update, without synchronising with the device. A plugin's
        # optimizer may have none: `apply` asks for it, which waits for the device.
        self._skips_by_itself = isinstance(self.optimizer, AdamW | Muon)
        if self._skips_by_itself:
            self.optimizer.found_inf = self.skip  # type: ignore[attr-defined]
        if self.precision == torch.bfloat16 and self.device.type == "cuda":
            self._casts = CastCopies(self._weights, self.precision)

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
        gradients = [p.grad for p in self._weights if p.grad is not None]
        norm = torch.zeros_like(objective)
        if gradients:
            mean = 1 / (share * tokens)
            norm = self.norm(gradients).to(self.device).double() * mean
            # One multiplication for the mean and for clipping.
            largest = self.settings.clip_norm or math.inf
            kept = (largest / (norm + 1e-6)).clamp(max=1.0)
            multiply_all(gradients, (mean * kept).to(gradients[0].dtype))
        self.skip.copy_(nonfinite(objective, norm))
        return UpdateResult(objective, norm, cross_entropy, tokens)

    def _forward_backward(self, batches: list[Batch]) -> list[Tensor] | None:
        """The losses of every batch; None if one ran out of memory, which is then split in the list
        itself.
        """
        losses = []
        for number, batch in enumerate(batches):
            self.exchange.begin_pass(last=number == len(batches) - 1)
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
        self.exchange.finish()
        self.ranks.all_reduce(total)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """The norm of all gradients together, over all ranks."""
        return torch.nn.utils.get_total_norm(gradients)

    @property
    def applied(self) -> Tensor | float:
        """1.0 if `apply` changed the weights, else 0.0; on the device, not synchronised."""
        return 1.0 - self.skip

    def apply(self) -> None:
        """Optimizer step and moving average, unless the gradients are NaN or infinite."""
        self._step()
        self.zero_gradients()

    def _step(self) -> None:
        if self._skips_by_itself or not bool(self.skip):
            self.optimizer.step()
        if self.average is not None:
            self.average.move(self.applied)

    def zero_gradients(self) -> None:
        """Discard the gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def free(self) -> None:
        """Free what a failed pass has left: partial gradients, cached memory."""
        self.zero_gradients()
        self._free_cache()

    def _free_cache(self) -> None:
        if self.device.type == "cuda":
            gc.collect()  # a pass that failed may be in circles of references
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
        moved = (batch.twice() if settings.passes == 2 else batch).to(self.device)
        if self.objective is not None:
            return self.objective(moved)
        how = (settings.label_smoothing, settings.r_drop, speech_losses(settings))
        return self.network.batch_loss(moved, *how)

    def lay_out(self, batch: Batch) -> Packed | Batch:
        """The batch as `gradients` reads it, in memory from which a GPU copies by itself: work that
        another thread can do ahead (`Batch.ready`)."""
        return batch

    def padding_fraction(self, batch: Batch) -> float:
        """Share of padding among the computed positions."""
        return batch.padding_fraction

    def _casting(self) -> AbstractContextManager[None]:
        """Cast all weights in one kernel, in place of hundreds of small ones."""
        return nullcontext() if self._casts is None else self._casts.active()

    def _autocast(self) -> torch.autocast:
        half = self.precision != torch.float32
        return torch.autocast(self.device.type, dtype=self.precision, enabled=half)


class Replayed:
    """Work on tensors that stay the same: the first calls run it, then it is captured as a CUDA
    graph, and replayed by all further calls. If it cannot be captured, all calls run it.
    """

    def __init__(
        self,
        work: Callable[[], Any],
        failed: Callable[[Exception], None],
        warm_up: int = WARM_UP,
        pool: Any = None,
        make_room: Callable[[], None] | None = None,
    ) -> None:
        """failed: is told why the work cannot be captured. pool: of memory, which graphs share that
        run one after the other. make_room: frees memory where it ran out in the capture, so that
        the work can be run; None: the error is raised.
        """
        self.work, self.failed, self.warm_up, self.pool = work, failed, warm_up, pool
        self.make_room = make_room
        self.graph: torch.cuda.CUDAGraph | None = None
        self._captures = True
        self._result: Any = None

    def __call__(self) -> Any:
        """What the work returns: of a replay, the same tensors every time."""
        if self.warm_up:
            self.warm_up -= 1
            return self.work()
        if self.graph is None and self._captures:
            self._captures = False
            try:
                self.graph = self._capture()
            except RuntimeError as error:
                if not out_of_memory(error):
                    self.failed(error)
                elif self.make_room is None:
                    raise
                else:
                    self.make_room()
        if self.graph is None:
            return self.work()
        self.graph.replay()
        return self._result

    def _capture(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        pool = self.pool or torch.cuda.graph_pool_handle()
        stream = torch.cuda.current_stream()
        torch.cuda.synchronize()
        # thread_local: another thread may pin memory meanwhile. Capturing computes nothing.
        how = torch.cuda.graph(graph, pool, capture_error_mode="thread_local")
        try:
            # It might free another graph, which ends a capture.
            with no_garbage_collection(), how:
                self._result = self.work()
        except RuntimeError:
            torch.cuda.set_stream(stream)  # where closing fails, it is still the capture's
            device = torch.cuda.current_device()
            give_back(graph, pool, device)
            _new_random_state(device)
            raise
        return graph


def _new_random_state(device: int) -> None:
    """torch's random generator still waits for the end of a failed capture, and draws nothing until
    then: it goes on with a state of its own."""
    generator = torch.cuda.default_generators[device]
    other = torch.Generator(generator.device)
    other.manual_seed(torch.initial_seed() + 1)
    generator.graphsafe_set_state(other.graphsafe_get_state())


@dataclass
class _CapturedPass:
    """A forward and backward pass as a CUDA graph, and the tensors it reads and writes."""

    replayed: Replayed
    inputs: dict[str, Tensor]
    buffers: list[Tensor]
    """Kept alive: a growing table of positions is replaced, but the graph reads the old one."""


@dataclass
class CapturedUpdate(Update):
    """The same with batches of few shapes, and a CUDA graph for each; packed (sequence packing)
    where the network can be, else padded.
    """

    _seen: Counter[Hashable] = field(default_factory=Counter)
    _graphs: dict[Hashable, _CapturedPass] = field(default_factory=dict)
    _packable: dict[int, bool] = field(default_factory=dict)
    _pool: Any = None
    """Graphs run one after the other, so they share one memory pool."""
    _used: int = 0
    """The weights with a gradient in this update, a bit for each: an optimizer leaves others alone,
    and does not let them decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # CUDA graphs read and write these very tensors.
        self._gradients = [torch.zeros_like(weight) for weight in self._weights]
        for weight, gradient in zip(self._weights, self._gradients, strict=True):
            weight.grad = gradient
        self._total = torch.zeros(3, dtype=torch.float64, device=self.device)
        self._rates = [torch.zeros((), device=self.device) for _ in self.optimizer.param_groups]
        self._all = (1 << len(self._weights)) - 1
        self._captures = True
        self._captured_mean = Replayed(
            lambda: Update._mean(self, self._total, 1.0),
            self._not_captured,
            make_room=self._make_room,
        )
        self._captured_steps: dict[int, Replayed] = {}
        self._longest = longest_row(self.network)
        self._empty = True
        """Whether the next pass is the first of its update."""

    def _not_captured(self, error: Exception) -> None:
        """Go on without graphs of passes: what kept one from being captured is in others too."""
        if self._captures:
            while isinstance(error.__context__, Exception):  # closing the capture fails, too
                error = error.__context__
            reason = " ".join(str(error).split("\n")[0].split())
            self.notices.append(
                f"Updates run without CUDA graphs from here on, which is slower: a pass could not "
                f"be captured ({reason})."
            )
        self._captures = False
        self._graphs.clear()

    def zero_gradients(self) -> None:
        self._empty = True  # no need to write zeros: the next pass overwrites the gradients
        self._used = 0

    def all_reduce(self, total: Tensor) -> None:
        self._zero()
        if self.ranks.grouped:  # others may have used other weights
            self._used = self._all
        super().all_reduce(total)

    def _zero(self) -> None:
        """Write the zeros that `zero_gradients` has only noted."""
        if self._empty:
            self.optimizer.zero_grad(set_to_none=False)
            self._empty = False

    def free(self) -> None:
        self._free_graphs()
        super().free()

    def _free_graphs(self) -> None:
        # Each graph keeps its memory while it exists; shapes that still come are captured again.
        self._graphs.clear()
        self._seen.clear()
        self._pool = None

    def _make_room(self) -> None:
        """There is no memory for a graph of what follows the passes: that runs without one."""
        if NO_ROOM not in self.notices:
            self.notices.append(NO_ROOM)
        self._free_graphs()
        self._free_cache()  # not the gradients: they are still to be applied

    def _mean(self, total: Tensor, share: float) -> UpdateResult:
        self._total.copy_(total)
        return UpdateResult(*torch.stack(self._captured_mean()).unbind())

    def _step(self) -> None:
        if not self._skips_by_itself:  # it asks whether to skip, which a graph cannot
            with self._only_used():
                super()._step()
            return
        if self._used not in self._captured_steps:
            step = Replayed(
                lambda: Update._step(self), self._not_captured, make_room=self._make_room
            )
            self._captured_steps[self._used] = step
        with self._only_used(), rates_on_device(self.optimizer, self._rates):
            self._captured_steps[self._used]()
        # Which a replay does not: others see that weights changed.
        increment_version(self._weights)

    @contextmanager
    def _only_used(self) -> Iterator[None]:
        """Within, weights without a gradient have none, rather than zeros."""
        unused = []
        if self._used != self._all:
            pairs = enumerate(zip(self._weights, self._gradients, strict=True))
            unused = [pair for bit, pair in pairs if not self._used >> bit & 1]
        for weight, _ in unused:
            weight.grad = None
        try:
            yield
        finally:
            for weight, gradient in unused:
                weight.grad = gradient

    def lay_out(self, batch: Batch) -> Packed | Batch:
        inputs: Packed | Batch | None = None
        if self.precision == torch.bfloat16 and self.objective is None:
            packed = pack(batch, copies=self.settings.passes)
            inputs = packed if self._packs(packed.shape.longest) else None
        inputs = batch.rounded(self._longest) if inputs is None else inputs
        with torch.cuda.device(self.device):
            pinned = {name: tensor.pin_memory() for name, tensor in inputs.tensors().items()}
        return inputs.with_tensors(pinned)

    def _laid_out(self, batch: Batch) -> Packed | Batch:
        if batch.ready is None:
            batch.ready = self.lay_out(batch)
        ready: Packed | Batch = batch.ready
        return ready

    def gradients(self, batch: Batch, weight: float = 1.0) -> Tensor:
        inputs = self._laid_out(batch)
        kind = (type(inputs), inputs.shape, self._empty)
        captured = self._graphs.get(kind)
        if captured is None:
            self._seen[kind] += 1
            if not self._captures or self._seen[kind] < 2 or len(self._graphs) >= MAX_GRAPHS:
                tensors = inputs.tensors().items()
                moved = {n: tensor.to(self.device, non_blocking=True) for n, tensor in tensors}
                sums, used = self._backward(inputs.with_tensors(moved))
                self._used |= used
                return sums
            captured = self._graphs[kind] = self._capture(inputs)
        for name, tensor in inputs.tensors().items():
            captured.inputs[name].copy_(tensor, non_blocking=True)
        loss: Tensor
        loss, used = captured.replayed()
        self._empty = False
        self._used |= used
        return loss.clone()

    def padding_fraction(self, batch: Batch) -> float:
        inputs = self._laid_out(batch)
        return packed_padding(batch) if isinstance(inputs, Packed) else inputs.padding_fraction

    def _packs(self, longest: int) -> bool:
        if longest not in self._packable:
            self._packable[longest] = self.network.packs(longest)
        return self._packable[longest]

    def _backward(self, inputs: Packed | Batch) -> tuple[Tensor, int]:
        """Adds the gradients of a pass; its sums, and the weights that have a gradient, as bits."""
        settings = self.settings
        with pass_buffers(), self._casting(), self._autocast():
            if isinstance(inputs, Packed):
                how = (settings.label_smoothing, settings.r_drop)
                loss = self.network.packed_loss(inputs, *how)
            else:
                loss = self.loss(inputs)
        found = torch.autograd.grad(loss.total, self._weights, allow_unused=True)
        pairs: list[tuple[Tensor, Tensor | None]] = list(zip(self._gradients, found, strict=True))
        known = [(mine, new) for mine, new in pairs if new is not None]
        own, others = [mine for mine, _ in known], [new for _, new in known]
        if self._empty:
            copy_all(own, others)
            for mine, new in pairs:
                if new is None:
                    mine.zero_()
        else:
            add_all(own, others)
        self._empty = False
        used = sum(1 << bit for bit, (_, new) in enumerate(pairs) if new is not None)
        return sums_of(loss), used

    def _capture(self, inputs: Packed | Batch) -> _CapturedPass:
        """A pass on inputs of this shape, not captured yet: the first call does it."""
        empty = {n: torch.empty_like(t, device=self.device) for n, t in inputs.tensors().items()}
        still, first = inputs.with_tensors(empty), self._empty

        def work() -> tuple[Tensor, int]:
            self._empty = first
            return self._backward(still)

        self._pool = self._pool or torch.cuda.graph_pool_handle()
        replayed = Replayed(work, self._not_captured, warm_up=0, pool=self._pool)
        return _CapturedPass(replayed, empty, list(self.network.buffers()))


@contextmanager
def rates_on_device(optimizer: torch.optim.Optimizer, rates: list[Tensor]) -> Iterator[None]:
    """Within, the learning rates are read from the device: a CUDA graph would keep numbers."""
    groups = optimizer.param_groups
    own = [(group["lr"], group.get("capturable", False)) for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        rate.fill_(group["lr"])
        group["lr"], group["capturable"] = rate, True
    try:
        yield
    finally:
        for group, (rate, capturable) in zip(groups, own, strict=True):
            group["lr"], group["capturable"] = rate, capturable


def longest_row(network: TrainableNetwork) -> int | None:
    """How long a row of tokens may be at most, where positions are learned; None: any length."""
    limited = [m.max_length for m in network.modules() if isinstance(m, Learned | Location)]
    return min(limited, default=None)


def speech_losses(settings: Train) -> SpeechLosses:
    losses = SpeechLosses(guided_attention=settings.guided_attention)
    views = settings.cr_ctc
    if views is None:
        return losses
    return losses._replace(cr_ctc=views.weight, time_mask_ratio=views.time_mask_ratio)


def sums_of(loss: Loss) -> Tensor:
    """The objective, the cross-entropy and the scored tokens of a batch, detached."""
    return torch.stack([loss.total.detach().double(), loss.nll.double(), loss.tokens.double()])


def why_not_captured(
    network: TrainableNetwork, settings: Train, sharded: bool = False
) -> str | None:
    """Why passes on a GPU are not captured as CUDA graphs; None where they are, and on a CPU."""
    if not next(network.parameters()).is_cuda:
        return None
    if sharded:
        return "the weights are sharded (train.fsdp)"
    if settings.checkpoint_activations:
        # It restores random generators, which a CUDA graph cannot.
        return "activations are recomputed (train.checkpoint_activations)"
    if isinstance(network, SpeechTransducer):
        return "the lattice of a transducer has another size in each batch, and graphs keep theirs"
    modules = list(network.modules())
    if is_watched(modules):
        return "the network has a lens or forward hooks, which a replay would not call"
    for module in modules:
        kind = type(module)
        if kind.__module__.partition(".")[0] not in OWN or "forward" in vars(module):
            return f"{kind.__name__} is not one of transduce's own parts, and may wait for the GPU"
        if isinstance(module, SpeechFrontend) and not module.any_length:
            return "the audio's positions are learned, so it cannot be filled up"
        if isinstance(module, Location) and any(isinstance(m, SpeechFrontend) for m in modules):
            return "the attention knows a limited number of positions of the audio"
    return None


def capture_notice(network: TrainableNetwork, settings: Train, sharded: bool) -> list[str]:
    """That updates are not captured as CUDA graphs, and why."""
    why = why_not_captured(network, settings, sharded)
    return [] if why is None else [f"Updates run without CUDA graphs, which is slower: {why}."]


def build_update(
    network: TrainableNetwork,
    optimizer: torch.optim.Optimizer,
    settings: Train,
    precision: torch.dtype,
    ranks: Processes | None = None,
    *,
    average: MovingAverage | None = None,
    objective: Callable[[Batch], Loss] | None = None,
) -> Update:
    """With CUDA graphs where possible; else one operation after the other."""
    on_gpu = next(network.parameters()).is_cuda
    captured = on_gpu and why_not_captured(network, settings) is None
    kind = CapturedUpdate if captured else Update
    ranks = ranks or Processes()
    parts = (network, optimizer, settings, precision, ranks)
    return kind(*parts, average=average, objective=objective)
