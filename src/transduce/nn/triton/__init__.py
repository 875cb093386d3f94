"""Triton kernels, where those of torch or its compiler would read memory more often.

Triton is a language of its own, so the kernels have no types. They are compiled at their first use:
a machine without a GPU has no Triton. Each is called from the file that explains it.

The kernels of a decoding step are so short that launching them takes a noticeable share of the
time. With EARLY (programmatic dependent launch) a kernel is launched while the one before it still
runs; it prefetches the weights, which that one does not write, and then waits for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import torch

from transduce.nn.triton.attention import attention_kernels
from transduce.nn.triton.depthwise import depthwise_kernels
from transduce.nn.triton.linear import product_kernels
from transduce.nn.triton.loss import loss_kernels
from transduce.nn.triton.residual import residual_kernels
from transduce.nn.triton.start import early, wait_kernel
from transduce.nn.triton.step import step_kernels

__all__ = ["compile_only", "early", "kernels", "reset_kernels"]

_COMPILES_ONLY: ContextVar[bool] = ContextVar("compiles_only", default=False)


def kernels() -> SimpleNamespace:
    """All kernels by name; within `compile_only`, such that run nothing."""
    return _compiled_only() if _COMPILES_ONLY.get() else _kernels()


@cache
def _kernels() -> SimpleNamespace:
    """Built once for each process."""
    return SimpleNamespace(
        **loss_kernels(),
        **attention_kernels(),
        **step_kernels(),
        **product_kernels(),
        **depthwise_kernels(),
        **residual_kernels(),
    )


def reset_kernels() -> None:
    """Forget the kernels of this process; the next use builds them again."""
    for cached in (_kernels, _compiled_only, early, wait_kernel):
        cached.cache_clear()


class CompiledOnly:
    """In the place of a kernel: a launch compiles what it would run, for the types and sizes of its
    arguments, and runs nothing."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return partial(self.kernel.warmup, grid=grid)


@cache
def _compiled_only() -> SimpleNamespace:
    return SimpleNamespace(**{n: CompiledOnly(k) for n, k in vars(_kernels()).items()})


@contextmanager
def compile_only(executor: Executor) -> Iterator[None]:
    """Within, in this thread, kernels are not run but compiled, in the executor; what they would
    write is not written. The end waits until all are compiled, and in Triton's cache.

    What cannot be compiled is left out: where it is needed, it fails again, and says why.
    """
    from triton import AsyncCompileMode

    before = _COMPILES_ONLY.set(True)
    try:
        # Backward passes run in this thread, too: another one would run the kernels.
        with (
            AsyncCompileMode(executor, ignore_errors=True),
            torch.autograd.set_multithreading_enabled(False),  # type: ignore[no-untyped-call]
        ):
            yield
    finally:
        _COMPILES_ONLY.reset(before)
