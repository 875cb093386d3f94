"""How many tokens a batch may have: `train.batch_tokens: auto` finds out by trying.

Memory grows with the tokens of a batch very nearly along a line, so a few small passes tell where
the line meets what there is; the answer is then tried itself. Passes leave no trace: gradients are
forgotten and random generators put back.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from transduce.data.batches.batch import Batch, collate
from transduce.data.batches.stream import Stream
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.training.memory.out_of_memory import out_of_memory
from transduce.training.update import PackedUpdate, Update

STEP = 256  # budgets are multiples of it
PROBES = (1024, 2048)
TRIES = 4
SHORT = 6  # tokens of a row where rows are many
# More makes no update better per token read, and on a CPU none faster.
MOST = {"cpu": 4096, "cuda": 65_536}
SHARE = 0.8  # of the free memory: validation, fragments and other programs want some
TRANSIENT = 1.5  # on a CPU, memory of a pass as a multiple of what it saves for the way back


def longest_pair(corpus: Encoded | Stream, most: int) -> tuple[int, int]:
    """The longest source and the longest target; of a stream, what the recipe lets through."""
    if isinstance(corpus, Stream) or not len(corpus):
        return most, most
    sources, targets = corpus.lengths
    return int(sources.max()), int(targets.max())


def fitting_budget(update: Update, longest: tuple[int, int], free: int | None = None) -> int:
    """The largest budget, a multiple of 256, whose worst batches fit into `free` bytes.

    Capped at 4,096 tokens on a CPU and 65,536 on a GPU. Without `free`, memory that is free now is
    asked for. Processes of a distributed run take the least of their answers.
    """
    most = MOST.get(update.device.type, MOST["cpu"])
    free = free_memory(update.device) if free is None else free
    room = int(SHARE * free) - _state_bytes(update)
    if isinstance(update, PackedUpdate):
        room //= 2  # recorded passes and those not yet recorded each keep memory of their own
    training = update.network.training
    devices = [update.device] if update.device.type == "cuda" else []
    update.network.train()
    try:
        with torch.random.fork_rng(devices=devices):
            if update.device.type == "cuda":
                return largest(lambda budget: _worst_bytes(update, longest, budget), room, most)
            # A CPU is slow, and what a pass saves is so many bytes a token and not one more.
            row = _width(longest)
            few = row * math.ceil(STEP / row)  # whole rows, or the line would lean
            points = [(budget, _worst_bytes(update, longest, budget)) for budget in (few, 4 * few)]
            return largest(lambda budget: _line(points, budget), room, most)
    finally:
        update.network.train(training)
        update.free()


def largest(bytes_of: Callable[[int], float], room: int, most: int) -> int:
    """The largest multiple of 256 up to `most` whose bytes fit; 256 where none does.

    `bytes_of` is infinite where a pass failed. Each guess is where the line through the two largest
    passes meets `room`; after one that did not fit, well below it.
    """
    points = [(budget, bytes_of(budget)) for budget in PROBES]
    for _ in range(TRIES):
        fits = max((budget for budget, cost in points if cost <= room), default=STEP)
        fails = min((budget for budget, cost in points if cost > room), default=None)
        ceiling = most if fails is None else 4 * fails // 5
        guess = min(_meeting(points, room), ceiling) // STEP * STEP
        if guess < fits + STEP:
            return fits
        points.append((guess, bytes_of(guess)))
    return max((budget for budget, cost in points if cost <= room), default=STEP)


def _meeting(points: list[tuple[int, float]], room: int) -> int:
    """Where the line through the two largest passes that ran meets the room there is."""
    ran = sorted(point for point in points if math.isfinite(point[1]))
    if len(ran) < 2:
        return min(budget for budget, _ in points) // 2
    (low, low_cost), (high, high_cost) = ran[-2:]
    slope = (high_cost - low_cost) / (high - low)
    return int(low + (room - low_cost) / slope) if slope > 0 else 2**62


def _width(pair: tuple[int, int]) -> int:
    """Of a row in a batch: END on both sides, BEGIN on the target's."""
    return max(pair[0] + 1, pair[1] + 2)


def _line(points: list[tuple[int, float]], budget: int) -> float:
    (low, low_cost), (high, high_cost) = points
    return low_cost + (high_cost - low_cost) * (budget - low) / (high - low)


def _worst_bytes(update: Update, longest: tuple[int, int], budget: int) -> float:
    """What a pass over a batch of this budget takes: few long rows, or many short ones."""
    short = min(longest[0], SHORT), min(longest[1], SHORT)
    passed = 0.0
    for source, target in (longest, short):
        rows = max(1, budget // _width((source, target)))
        batch = collate([[UNKNOWN] * source] * rows, [[UNKNOWN] * target] * rows)
        try:
            took = _peak(update, batch) if update.device.type == "cuda" else _saved(update, batch)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            took = math.inf
        passed = max(passed, took)
        update.free()
    return passed


def _peak(update: Update, batch: Batch) -> float:
    """The measured peak of a pass there and back, beyond what was allocated before."""
    torch.cuda.reset_peak_memory_stats(update.device)
    before = torch.cuda.memory_allocated(update.device)
    Update.gradients(update, batch, batch.target_tokens)  # not recorded
    return float(torch.cuda.max_memory_allocated(update.device) - before)


def _saved(update: Update, batch: Batch) -> float:
    """An estimate from what a pass forwards saves: no CPU tells the peak of a single pass."""
    held: dict[int, int] = {}
    own = {p.untyped_storage().data_ptr() for p in update.network.parameters()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        half = update.precision != torch.float32
        with torch.autocast(update.device.type, dtype=update.precision, enabled=half):
            update.network.batch_loss(batch.to(update.device))
    return TRANSIENT * sum(held.values())


def _state_bytes(update: Update) -> int:
    """Gradients and AdamW's two moments, as far as they do not exist yet."""
    missing = 0
    for parameter in update.network.parameters():
        size = parameter.numel() * parameter.element_size()
        missing += size * ((parameter.grad is None) + 2 * (parameter not in update.optimizer.state))
    return missing


# -------------------------------------------------------------------------------- free memory


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still take on a device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [_available(), *_control_groups(), _address_space()]
    return max(min(limit for limit in limits if limit is not None), 0)


def _available() -> int:
    """What the machine has left: /proc/meminfo, or half of all memory where there is none."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 2**31  # enough for the most that a CPU is given


def _control_groups() -> list[int]:
    """What is left to a container: version 2 and version 1 of Linux's control groups."""
    left = []
    for folder, limit, used, cached in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        (
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        ),
    ):
        with suppress(OSError, ValueError):  # not there, or "max"
            most, taken = (int(Path(folder, name).read_text()) for name in (limit, used))
            lines = Path(folder, "memory.stat").read_text().splitlines()
            counts = dict(line.split() for line in lines)
            # Files that were read stay in memory as long as nobody else wants it.
            left.append(most - taken + int(counts.get(cached, 0)))
    return left


def _address_space() -> int | None:
    """What a limit such as `ulimit -v` leaves."""
    with suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            return limit - pages * resource.getpagesize()
    return None
