"""Gradients are all-reduced in buckets while the backward pass computes those of earlier layers.

As DistributedDataParallel does it (Li et al. 2020, https://arxiv.org/abs/2006.15704), but ranks may
have different numbers of batches, a batch that runs out of memory is repeated in halves, and CUDA
graphs write gradients without hooks: then the buckets are sent after the last pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from transduce.nn.torch_private import copy_all
from transduce.training.distributed.processes import Processes

BUCKET = 32 * 2**20  # bytes of gradients in one all-reduce


class GradientExchange:
    """Sums the gradients of weights over all ranks, once in each update.

    All ranks send the same buckets in the same order. The backward pass reaches the last weights
    first, so the buckets are filled from the end.
    """

    def __init__(self, weights: Sequence[Tensor], ranks: Processes) -> None:
        self._ranks = ranks
        self._buckets = bucketed(list(weights)[::-1]) if ranks.grouped else []
        self._sent: list[tuple[Tensor, Any]] = []
        """The gradients of the first buckets, in flight."""
        self._last = False
        self._missing: list[int] = []
        """Gradients of each bucket that the last pass has not completed yet."""
        for number, bucket in enumerate(self._buckets):
            for weight in bucket:
                hook = partial(self._arrived, number)
                weight.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]

    def begin_pass(self, last: bool) -> None:
        """last: whether this backward pass completes the gradients of the update."""
        self._last = last
        self._missing = [len(bucket) for bucket in self._buckets]

    def _arrived(self, number: int, weight: Tensor) -> None:
        """The pass is done with a weight of this bucket."""
        if not self._last:
            return
        self._missing[number] -= 1
        while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
            self._send()

    @torch.no_grad()
    def _send(self) -> None:
        """Start the all-reduce of the next bucket, on a copy.

        A pass that then runs out of memory is repeated in smaller batches; what was sent is the
        gradient of all batches already, and stays.
        """
        bucket = self._buckets[len(self._sent)]
        parts = [torch.zeros_like(w) if w.grad is None else w.grad for w in bucket]
        flat = torch.cat([part.reshape(-1) for part in parts])
        self._sent.append((flat, self._ranks.start_all_reduce(flat)))

    @torch.no_grad()
    def finish(self) -> None:
        """Send what was not sent, wait, and leave each gradient as its sum over all ranks.

        A rank without batches sends zeros.
        """
        self._last = False
        while len(self._sent) < len(self._buckets):
            self._send()
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            work.wait()
            for weight in bucket:
                if weight.grad is None:
                    weight.grad = torch.empty_like(weight)
            own = [weight.grad for weight in bucket if weight.grad is not None]
            parts = torch.split(flat, [gradient.numel() for gradient in own])
            copy_all(own, [part.view_as(g) for part, g in zip(parts, own, strict=True)])
        self._sent.clear()


def bucketed(weights: list[Tensor]) -> list[list[Tensor]]:
    """As many weights together as a bucket holds, of one type each."""
    buckets: list[list[Tensor]] = []
    size = 0
    for weight in weights:
        more = weight.numel() * weight.element_size()
        if not buckets or size + more > BUCKET or weight.dtype != buckets[-1][0].dtype:
            buckets.append([])
            size = 0
        buckets[-1].append(weight)
        size += more
    return buckets
