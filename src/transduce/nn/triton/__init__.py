"""Kernels by hand, where those of torch or its compiler would read memory more often.

They are Triton's language rather than Python, so nothing in them is typed; they are made when first
used, as a machine without a GPU has no Triton. Each is called from the file that explains it.

Those of a decoding step are so short that starting them counts. With EARLY one is started while the
one before still works; it fetches what that one does not write, the weights, and then waits for its
end.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

from transduce.nn.triton.attention import attention_kernels
from transduce.nn.triton.linear import product_kernels
from transduce.nn.triton.loss import loss_kernels
from transduce.nn.triton.residual import residual_kernels
from transduce.nn.triton.start import early
from transduce.nn.triton.step import step_kernels

__all__ = ["early", "kernels"]


@cache
def kernels() -> SimpleNamespace:
    """All of them, by name."""
    return SimpleNamespace(
        **loss_kernels(),
        **attention_kernels(),
        **step_kernels(),
        **product_kernels(),
        **residual_kernels(),
    )
