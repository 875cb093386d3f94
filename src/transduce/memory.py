"""Memory: how much is free, and whether an error means that it ran out."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import torch

# Messages of allocators other than torch's for CUDA, which raise a plain RuntimeError.
MESSAGES = (
    "DefaultCPUAllocator",
    "bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out.

    If capturing a CUDA graph runs out of memory, closing the capture raises another error: so the
    causes of an error are checked as well.
    """
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    if isinstance(error, RuntimeError) and any(words in str(error) for words in MESSAGES):
        return True
    return error.__context__ is not None and out_of_memory(error.__context__)


def free_memory(device: torch.device) -> int:
    """Bytes that this process may still allocate on a device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    limits = [_available(), *_control_groups(), _address_space()]
    return max(min(limit for limit in limits if limit is not None), 0)


def give_back() -> None:
    """Give memory that was freed back to the system, where the C library does so when asked: glibc
    keeps what lies between blocks that are in use."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _available() -> int:
    """Available memory of the machine: /proc/meminfo, or half of all memory."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    with suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 2**31  # enough for the largest batch on a CPU


def _control_groups() -> list[int]:
    """The memory limit of a container: Linux control groups, versions 2 and 1."""
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
            maximum, taken = (int(Path(folder, name).read_text()) for name in (limit, used))
            lines = Path(folder, "memory.stat").read_text().splitlines()
            counts = dict(line.split() for line in lines)
            # The page cache counts as used, but can be reclaimed.
            left.append(maximum - taken + int(counts.get(cached, 0)))
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
