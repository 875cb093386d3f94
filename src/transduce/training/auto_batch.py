"""Automatic batch size: `train.batch_tokens: auto` finds the largest batch that fits into memory.

Memory grows almost linearly with the tokens of a batch, so a few small passes show where the line
meets the free memory; that size is then tried itself. The passes have no side effects: gradients
are discarded and random generators restored.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from transduce.data.batches.batch import Batch, collate
from transduce.data.batches.streaming_dataset import StreamingDataset
from transduce.data.cache.tokenised import Encoded
from transduce.data.tokens.tokenizer import UNKNOWN
from transduce.memory import free_memory, out_of_memory
from transduce.training.update import CapturedUpdate, Update

STEP = 256  # batch sizes are multiples of it
PROBES = (1024, 2048)
TRIES = 4
SHORT = 6  # tokens of a row in a batch of many short rows
# A larger batch makes no update better per token read, and on a CPU none faster.
MAX_TOKENS = {"cpu": 4096, "cuda": 65_536}
# share of the free memory to use: validation, fragmentation and other programs need some
SHARE = 0.8
# on a CPU, memory of a pass as a multiple of the activations saved for the backward pass
TRANSIENT = 1.5


def longest_pair(corpus: Encoded | StreamingDataset, maximum: int) -> tuple[int, int]:
    """The longest source and the longest target; of a stream, the limits of the recipe."""
    if isinstance(corpus, StreamingDataset) or not len(corpus):
        return maximum, maximum
    sources, targets = corpus.lengths
    return int(sources.max()), int(targets.max())


def fitting_budget(update: Update, longest: tuple[int, int], free: int | None = None) -> int:
    """The largest batch size in tokens, a multiple of 256, whose worst batches fit into `free`
    bytes.

    At most 4,096 tokens on a CPU and 65,536 on a GPU. Without `free`, the memory that is free now.
    Ranks of a distributed run take the smallest of their results.
    """
    maximum = MAX_TOKENS.get(update.device.type, MAX_TOKENS["cpu"])
    free = free_memory(update.device) if free is None else free
    capacity = int(SHARE * free) - _state_bytes(update)
    if isinstance(update, CapturedUpdate):
        capacity //= 2  # CUDA graphs and passes not yet captured each keep memory of their own
    training = update.network.training
    devices = [update.device] if update.device.type == "cuda" else []
    update.network.train()
    try:
        with torch.random.fork_rng(devices=devices):
            if update.device.type == "cuda":
                return largest(
                    lambda budget: _worst_bytes(update, longest, budget), capacity, maximum
                )
            # On a CPU passes are slow, and the saved activations are exactly proportional to the
            # tokens.
            row = _width(longest)
            few = row * math.ceil(STEP / row)  # whole rows, otherwise the line would be biased
            points = [(budget, _worst_bytes(update, longest, budget)) for budget in (few, 4 * few)]
            return largest(lambda budget: _line(points, budget), capacity, maximum)
    finally:
        update.network.train(training)
        update.free()


def largest(bytes_of: Callable[[int], float], capacity: int, maximum: int) -> int:
    """The largest multiple of 256 up to `maximum` whose bytes fit; 256 if none does.

    `bytes_of` is infinite where a pass failed. Each guess is where the line through the two largest
    passes meets `capacity`; after one that did not fit, well below it.
    """
    points = [(budget, bytes_of(budget)) for budget in PROBES]
    for _ in range(TRIES):
        fits = max((budget for budget, cost in points if cost <= capacity), default=STEP)
        fails = min((budget for budget, cost in points if cost > capacity), default=None)
        ceiling = maximum if fails is None else 4 * fails // 5
        guess = min(_meeting(points, capacity), ceiling) // STEP * STEP
        if guess < fits + STEP:
            return fits
        points.append((guess, bytes_of(guess)))
    return max((budget for budget, cost in points if cost <= capacity), default=STEP)


def _meeting(points: list[tuple[int, float]], capacity: int) -> int:
    """Where the line through the two largest successful passes meets the available memory."""
    ran = sorted(point for point in points if math.isfinite(point[1]))
    if len(ran) < 2:
        return min(budget for budget, _ in points) // 2
    (low, low_cost), (high, high_cost) = ran[-2:]
    slope = (high_cost - low_cost) / (high - low)
    return int(low + (capacity - low_cost) / slope) if slope > 0 else 2**62


def _width(pair: tuple[int, int]) -> int:
    """Tokens of a row in a batch, with BEGIN and END."""
    return max(pair[0] + 1, pair[1] + 2)


def _line(points: list[tuple[int, float]], budget: int) -> float:
    (low, low_cost), (high, high_cost) = points
    return low_cost + (high_cost - low_cost) * (budget - low) / (high - low)


def _worst_bytes(update: Update, longest: tuple[int, int], budget: int) -> float:
    """Memory of the worst batch of this size: few long rows, or many short ones."""
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
    """The measured peak memory of a forward and backward pass, beyond what was allocated before."""
    torch.cuda.reset_peak_memory_stats(update.device)
    before = torch.cuda.memory_allocated(update.device)
    Update.gradients(update, batch)  # not captured as a CUDA graph
    return float(torch.cuda.max_memory_allocated(update.device) - before)


def _saved(update: Update, batch: Batch) -> float:
    """An estimate from the activations that the forward pass saves: on a CPU the peak cannot be
    measured.
    """
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
    """Memory of gradients and AdamW's two moments, as far as they do not exist yet."""
    missing = 0
    for parameter in update.network.parameters():
        if not parameter.requires_grad:
            continue
        size = parameter.numel() * parameter.element_size()
        missing += size * ((parameter.grad is None) + 2 * (parameter not in update.optimizer.state))
    return missing
