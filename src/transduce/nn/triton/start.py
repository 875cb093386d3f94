"""Launch options of decoding-step kernels: programmatic dependent launch."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def early(device: torch.device, learning: bool = False) -> dict[str, Any]:
    """Launch options: start before the previous kernel has ended, where the GPU can (Hopper on).

    Not in training: the previous kernel might be writing the weights.
    """
    capable = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    can = capable and not learning
    return {"EARLY": can, "launch_pdl": can}


@cache
def wait_kernel() -> Any:
    """The function that a kernel calls before it reads what the previous kernel writes."""
    import triton
    import triton.language as tl

    @triton.jit
    def wait(EARLY: tl.constexpr):
        """Wait for the end of the previous kernel; the next one may be launched meanwhile."""
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()

    return wait
