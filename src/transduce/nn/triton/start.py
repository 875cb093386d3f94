"""How a kernel of a decoding step starts, and what it waits for."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


@cache
def early(device: torch.device, learning: bool = False) -> dict[str, Any]:
    """How kernels of a decoding step are started: early where the device can, from Hopper on.

    Not while the network learns: the one before might be writing the weights.
    """
    capable = torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)
    can = capable and not learning
    return {"EARLY": can, "launch_pdl": can}


@cache
def wait_kernel() -> Any:
    """What a kernel calls before it reads what the one before it writes."""
    import triton
    import triton.language as tl

    @triton.jit
    def wait(EARLY: tl.constexpr):
        """For the end of the kernel before; the next one may be started meanwhile."""
        if EARLY:
            tl.extra.cuda.gdc_launch_dependents()
            tl.extra.cuda.gdc_wait()

    return wait
