"""The processes of a distributed run: rank, world size, and collective operations.

torchrun starts them and sets rank and world size in the environment. Tensors are all-reduced by
NCCL on GPUs and by gloo on CPUs; everything the host decides goes through gloo, which notices at
once when another process has died. A single process has the same methods, which do nothing.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from transduce.errors import HardwareError, TrainingError
from transduce.hardware import pick_device
from transduce.nn.torch_private import copy_all

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)  # for a process that hangs; one that dies is noticed at once
LONG_TIMEOUT = timedelta(hours=6)  # timeout while one process tokenises and the others barrier
BUCKET = 32 * 2**20  # bytes of gradients in one all-reduce


@dataclass
class Processes:
    """This process (rank) among those of its run, and its local rank on its machine."""

    rank: int = 0
    count: int = 1
    local: int = 0
    update: int = 0
    """The current update, for messages; 0 before the first."""
    _reading: Any = None
    """A separate process group for the thread that reads a stream, apart from the main thread's."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the one process that prints and writes."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """The device of `train.device` for this process: each rank has its own GPU."""
        kind, _, number = name.partition(":")
        if self.count > 1 and (kind if kind != "auto" else pick_device("auto").type) == "cuda":
            if number:
                raise HardwareError(
                    f"train.device is {name}, but this run has {self.count} processes, and each "
                    f"uses a GPU of its own; leave it at auto"
                )
            there = torch.cuda.device_count()
            if self.local >= there:
                raise HardwareError(
                    f"more processes were started on this machine than it has GPUs; give torchrun "
                    f"--nproc-per-node {there}, or set train.device=cpu"
                )
            return pick_device(f"cuda:{self.local}")
        return pick_device(name)

    def seed(self, seed: int, step: int) -> int:
        """A seed that is different for each rank and update."""
        return int(np.random.SeedSequence([seed, step, self.rank]).generate_state(1)[0])

    # ----------------------------------------------------------------------------- tensors

    @torch.no_grad()
    def all_reduce(self, tensors: Iterable[Tensor]) -> None:
        """All-reduce: each tensor becomes its sum over all ranks, in place and asynchronously.

        Not DistributedDataParallel: CUDA graphs write gradients without its hooks, and ranks may
        have different numbers of batches.
        """
        if self.count == 1:
            return
        for bucket in _buckets(list(tensors)):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in bucket])
            summed = [part.view_as(tensor) for part, tensor in zip(parts, bucket, strict=True)]
            copy_all(bucket, summed)

    # --------------------------------------------------------------------------- small things

    def barrier(self) -> None:
        """Barrier: continue when all ranks are here."""
        self.all_gather_numbers([0.0])

    def all_gather_numbers(self, own: list[float]) -> list[list[float]]:
        """All-gather of a few numbers, in the order of ranks; all must give equally many."""
        if self.count == 1:
            return [own]
        return [found.tolist() for found in self._all(torch.tensor(own, dtype=torch.float64))]

    def all_gather(self, own: T) -> list[T]:
        """All-gather of JSON values, in the order of ranks."""
        if self.count == 1:
            return [own]
        return [json.loads(found) for found in self._all_gather(json.dumps(own).encode(), None)]

    def broadcast(self, own: T) -> T:
        """Broadcast the value of rank 0; those of the others are ignored."""
        return self.all_gather(own if self.first else None)[0]  # type: ignore[return-value]

    def exchange(self, own: bytes) -> list[bytes]:
        """All-gather of bytes, in the order of ranks; for the thread that reads a stream."""
        return [own] if self.count == 1 else self._all_gather(own, self._reading)

    def in_turn(self, make: Callable[[], T]) -> T:
        """Run `make` first once on each machine, so that the others find its result in the
        cache.
        """
        made = [make()] if self.local == 0 else []
        self.exchange(b"")
        return made[0] if made else make()

    def _all_gather(self, own: bytes, group: Any) -> list[bytes]:
        sizes = [int(size) for size in self._all(torch.tensor([len(own)]), group)]
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(own)] = torch.from_numpy(np.frombuffer(own, np.uint8).copy())
        parts = self._all(padded, group) if max(sizes) else [padded] * self.count
        return [part[:size].numpy().tobytes() for part, size in zip(parts, sizes, strict=True)]

    def _all(self, own: Tensor, group: Any = None) -> list[Tensor]:
        parts = [torch.empty_like(own) for _ in range(self.count)]
        dist.all_gather(parts, own, group=group)
        return parts

    # ---------------------------------------------------------------------------------- loss

    @contextmanager
    def together(self) -> Iterator[None]:
        """Turn the loss of another process into one sentence."""
        try:
            yield
        except RuntimeError as error:
            if self.count == 1 or not _is_loss(error):
                raise
            _ignore_termination()
            raise TrainingError(self._lost()) from None

    def _lost(self) -> str:
        if not self.update:
            return (
                "another process of this run died before the first update; see its own error "
                "message for the reason"
            )
        return (
            f"another process of this run died at update {self.update}; the last checkpoint is "
            f"intact: start again with --resume"
        )


@contextmanager
def join(device: str) -> Iterator[Processes]:
    """Join the process group that torchrun started, and leave it at the end.

    After an error this process only has to end: the others then notice that it is gone.
    """
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    if not all(name in os.environ for name in names) or os.environ["WORLD_SIZE"] == "1":
        yield Processes()
        return
    ranks = Processes(*(int(os.environ[name]) for name in names))
    own = ranks.device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    try:
        backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=TIMEOUT)
        ranks._reading = dist.new_group(backend="gloo", timeout=LONG_TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"the {ranks.count} processes of this run could not connect to each other "
            f"({str(error).splitlines()[0]}); start all of them with the same torchrun line"
        ) from None
    with ranks.together():
        yield ranks
        ranks.barrier()
    dist.destroy_process_group()


def _buckets(tensors: list[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        more = tensor.numel() * tensor.element_size()
        if bucket and (size + more > BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += more
    if bucket:
        yield bucket


def _is_loss(error: RuntimeError) -> bool:
    """Whether an error means that another process has died; gloo has only messages for it."""
    message = str(error).lower()
    return isinstance(error, dist.DistError) or "gloo" in message or "nccl" in message


def _ignore_termination() -> None:
    """Ignore torchrun's SIGTERM when another process is lost: this one ends by itself, with a
    reason.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
