"""Triton kernels, where those of torch or its compiler would read memory more often.

Triton is a language of its own, so the kernels have no types. They are compiled at their first use:
a machine without a GPU has no Triton. Each is called from the file that explains it.

The kernels of a decoding step are so short that launching them takes a noticeable share of the
time. With EARLY (programmatic dependent launch) a kernel is launched while the one before it still
runs; it prefetches the weights, which that one does not write, and then waits for its end.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

from transduce.nn.triton.attention import attention_kernels
from transduce.nn.triton.depthwise import depthwise_kernels
from transduce.nn.triton.linear import product_kernels
from transduce.nn.triton.loss import loss_kernels
from transduce.nn.triton.residual import residual_kernels
from transduce.nn.triton.start import early, wait_kernel
from transduce.nn.triton.step import step_kernels

__all__ = ["early", "kernels", "reset_kernels"]


@cache
def kernels() -> SimpleNamespace:
    """All kernels by name; built once for each process."""
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
    for cached in (kernels, early, wait_kernel):
        cached.cache_clear()
