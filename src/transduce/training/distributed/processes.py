"""The processes of a distributed run: rank, world size, and collective operations.

Tensors are all-reduced by NCCL on GPUs and by gloo on CPUs; everything the host decides goes
through gloo, which notices at once when another process has died. A single process has the same
methods, which do nothing.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from transduce.errors import HardwareError, TrainingError
from transduce.hardware import pick_device
from transduce.terminal import duration
from transduce.training.distributed.launchers import place_in_run
from transduce.training.distributed.roll_call import WHEN, Member, RollCall

T = TypeVar("T")

LONG_TIMEOUT = timedelta(hours=6)  # while one process tokenises and the others wait for it


@dataclass
class Processes:
    """This process (rank) among those of its run, and its local rank on its machine."""

    rank: int = 0
    count: int = 1
    local: int = 0
    update: int = 0
    """The current update, for messages; 0 before the first."""
    joined: bool = False
    """Whether there is a process group, of several ranks or of one."""
    timeout: float = 10.0
    """Minutes for which a collective waits; a process that dies is noticed at once."""
    _reading: Any = None
    """A separate process group for the thread that reads a stream, apart from the main thread's."""
    _waiting: Any = None
    """A process group for what may take hours, such as tokenizing a corpus."""
    _roll_call: RollCall | None = None

    @property
    def first(self) -> bool:
        """Whether this is rank 0, the one process that prints and writes."""
        return self.rank == 0

    @property
    def grouped(self) -> bool:
        """Whether collectives communicate; a single process has nobody to ask."""
        return self.joined or self.count > 1

    def name(self, rank: int) -> str:
        """A rank and its machine, for messages."""
        return f"rank {rank}" if self._roll_call is None else self._roll_call.name(rank)

    def device(self, name: str) -> torch.device:
        """The device of `train.device` for this process: each rank has its own GPU, unless one is
        named, which all ranks of a machine then share."""
        kind, _, number = name.partition(":")
        if number or (kind if kind != "auto" else pick_device("auto").type) != "cuda":
            return pick_device(name)
        if not self.grouped:
            return pick_device(name)
        there = torch.cuda.device_count()
        if 1 < there <= self.local:
            raise HardwareError(
                f"more processes were started on this machine than it has GPUs; give torchrun "
                f"--nproc-per-node {there}, or set train.device=cpu"
            )
        # srun and Ray may show each process one GPU: whether it is its own, `join` finds out.
        return pick_device(f"cuda:{self.local if there > 1 else 0}")

    def seed(self, seed: int, step: int) -> int:
        """A seed that is different for each rank and update."""
        return int(np.random.SeedSequence([seed, step, self.rank]).generate_state(1)[0])

    # ----------------------------------------------------------------------------- tensors

    @torch.no_grad()
    def all_reduce(self, tensor: Tensor) -> None:
        """All-reduce: the tensor becomes its sum over all ranks, in place."""
        if self.grouped:
            dist.all_reduce(tensor)

    def start_all_reduce(self, tensor: Tensor) -> Any:
        """The same beside other work; the result has `wait`."""
        return dist.all_reduce(tensor, async_op=True)

    # --------------------------------------------------------------------------- small things

    def barrier(self) -> None:
        """Barrier: continue when all ranks are here."""
        self.all_gather_numbers([0.0])

    def all_gather_numbers(self, own: list[float]) -> list[list[float]]:
        """All-gather of a few numbers, in the order of ranks; all must give equally many."""
        if not self.grouped:
            return [own]
        return [found.tolist() for found in self._all(torch.tensor(own, dtype=torch.float64))]

    def all_gather(self, own: T) -> list[T]:
        """All-gather of JSON values, in the order of ranks."""
        if not self.grouped:
            return [own]
        return [json.loads(found) for found in self._all_gather(json.dumps(own).encode(), None)]

    def broadcast(self, own: T) -> T:
        """Broadcast the value of rank 0; those of the others are ignored."""
        return self.all_gather(own if self.first else None)[0]  # type: ignore[return-value]

    def exchange(self, own: bytes) -> list[bytes]:
        """All-gather of bytes, in the order of ranks; for the thread that reads a stream."""
        return [own] if not self.grouped else self._all_gather(own, self._reading)

    def exchange_late(self, own: bytes) -> list[bytes]:
        """The same, where some ranks may be hours later than others."""
        return [own] if not self.grouped else self._all_gather(own, self._waiting)

    def in_turn(self, make: Callable[[], T]) -> T:
        """Run `make` first once on each machine, so that the others find its result in the
        cache.
        """
        made = [make()] if self.local == 0 else []
        self.exchange_late(b"")
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
        """Turn the loss of another process into one sentence, and tell the others of an error."""
        try:
            yield
        except LostRank:
            raise
        except RuntimeError as error:
            if not self.grouped or not _is_loss(error):
                self._tell(error)
                raise
            _ignore_termination()
            raise LostRank(self._lost(error)) from None
        except BaseException as error:
            self._tell(error)
            raise

    def finish_alone(self) -> None:
        """The ranks have trained: the loss of another does not end what this one still does."""
        if self._roll_call is not None:
            self._roll_call.alone = True

    def _tell(self, error: BaseException) -> None:
        if self._roll_call is not None:
            self._roll_call.ended(" ".join(str(error).split()) or type(error).__name__)

    def _lost(self, error: RuntimeError) -> str:
        waited = ""
        if "timed out" in str(error).lower() or "timeout" in str(error).lower():
            waited = f"{duration(60 * self.timeout)}: train.timeout"
        reason = f"another rank of this run died {WHEN}"
        if self._roll_call is not None:
            reason = self._roll_call.lost(waited, str(error).partition("\n")[0])
        if not self.update:
            return f"{reason.replace(WHEN, 'before the first update')}; see its own messages"
        return (
            f"{reason.replace(WHEN, f'at update {self.update}')}; the last checkpoint is intact: "
            f"start again with --resume, with any number of processes"
        )


class LostRank(TrainingError):
    """Another rank is gone; this one ends too."""


@contextmanager
def join(device: str, timeout: float = Processes.timeout) -> Iterator[Processes]:
    """Join the process group that a launcher started, and leave it at the end.

    timeout: minutes for which a process is waited for. After an error this process only has to end:
    the others then notice that it is gone.
    """
    place = place_in_run()
    if place is None:
        yield Processes()
        return
    if dist.is_initialized():
        raise TrainingError(
            "this process has a process group of torch.distributed already, its own or that of a "
            "training that failed: call torch.distributed.destroy_process_group(), or start it anew"
        )
    ranks = Processes(*place, joined=True, timeout=timeout)
    own = ranks.device(device)
    if own.type == "cuda":
        torch.cuda.set_device(own)
    # NCCL wants a GPU for each rank: one that was named, and is shared, communicates by gloo.
    backend = "cpu:gloo,cuda:nccl" if own.type == "cuda" and ":" not in device else "gloo"
    patience = timedelta(minutes=timeout)
    try:
        met, _, _ = next(rendezvous("env://", place.rank, place.size, timeout=patience))
        # torchrun's store still has the keys of groups that these processes had before.
        earlier = met.add(f"transduce/joined/{place.rank}", 1)
        store = dist.PrefixStore(f"transduce/{earlier}", met)  # type: ignore[attr-defined]
        dist.init_process_group(
            backend, store=store, rank=place.rank, world_size=place.size, timeout=patience
        )
        ranks._reading = dist.new_group(backend="gloo", timeout=patience)
        ranks._waiting = dist.new_group(backend="gloo", timeout=LONG_TIMEOUT)
        members = [Member(*found) for found in ranks.all_gather(Member.here())]
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"the {ranks.count} processes of this run could not connect to each other within "
            f"{duration(60 * timeout)} (train.timeout; {str(error).splitlines()[0]}): start all "
            f"{ranks.count} of them, with the same command"
        ) from None
    ranks._roll_call = RollCall(store, place.rank, members)
    with ranks.together():
        if own.type == "cuda" and ":" not in device:
            _check_own_gpus(ranks, own)
        yield ranks
        ranks._roll_call.leave()
        # Rank 0 may choose how to decode, and write the report, for longer than the timeout.
        ranks.exchange_late(b"")
    dist.destroy_process_group()


def _check_own_gpus(ranks: Processes, device: torch.device) -> None:
    """Raise HardwareError where two ranks have the same GPU."""
    owners: dict[str, int] = {}
    found = ranks.all_gather(str(torch.cuda.get_device_properties(device).uuid))
    for rank, gpu in enumerate(found):
        if gpu in owners:
            raise HardwareError(
                f"{ranks.name(owners[gpu])} and {ranks.name(rank)} have the same GPU: start at "
                f"most as many processes on a machine as it has GPUs (torchrun --nproc-per-node, "
                f"srun --ntasks-per-node), or set train.device=cpu"
            )
        owners[gpu] = rank


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
