"""Devices and precision: what a run computes on."""

from __future__ import annotations

import gc
import os
import platform
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from transduce.errors import HardwareError

PARALLEL_FLOPS = 1 << 24  # of one product of a batch and a matrix: below, threads do not pay


def pick_device(name: str) -> torch.device:
    """The device of a recipe's `train.device`; auto takes a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if device.type == "meta":  # the meta device has no data
            raise RuntimeError
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:
        # For an unknown name torch lists every kind of device it has ever supported.
        known = name.split(":")[0] in ("cpu", "cuda", "mps", "xpu")
        reason = f" ({str(error).splitlines()[0]})" if known else ""
        raise HardwareError(f"the device {name} cannot be used here{reason}; try auto") from None
    return device


def pick_precision(name: str, device: torch.device, width: int) -> torch.dtype:
    """The type of matrix products (mixed precision); weights, sums and norms stay in float32."""
    if name != "auto":
        return torch.bfloat16 if name == "bfloat16" else torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    # On a CPU with AMX tiles bfloat16 is faster for products that are large enough to outweigh the
    # casts; without AMX it is emulated, and many times slower.
    tiles = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    fast = width >= 256 and tiles()
    return torch.bfloat16 if fast else torch.float32


def training_threads(width: int, batch_tokens: int | str, available: int) -> int:
    """How many of the available CPU threads pay: with tiny matrices they only wait for each other.

    The sizes decide, not a measurement, so that a run gives the same numbers each time.
    """
    if isinstance(batch_tokens, str) or 2 * width**2 * batch_tokens >= PARALLEL_FLOPS:
        return available
    return 1


@contextmanager
def threads_for(width: int, batch_tokens: int | str) -> Iterator[None]:
    """Within, torch uses as many CPU threads as pay; what OMP_NUM_THREADS says is kept."""
    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(training_threads(width, batch_tokens, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe(device: torch.device) -> str:
    """The hardware in words, to print beside a measurement."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def keep_loaded() -> None:
    """Freeze all existing objects for the garbage collector (gc.freeze): torch's modules, a model.

    A program that makes many small objects has the garbage collector scan everything again and
    again, all of torch included. Frozen objects are skipped, and never freed: this is for a process
    that loads once and then works.
    """
    gc.freeze()
