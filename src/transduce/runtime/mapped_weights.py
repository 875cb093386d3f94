"""Weights that only their file holds: the system reads them when they are used.

Search on a CPU multiplies with packed copies of the matrices. A model that no longer changes then
needs no memory for the matrices themselves: they are the bytes of its file, mapped, and stay usable
(scores of given targets, lenses and exports read them).
"""

from __future__ import annotations

import json
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

FLOAT32 = "F32"  # as safetensors calls it
LENGTH = 8  # bytes that say how long the header is
CAN_FORGET = sys.platform == "linux"
"""Elsewhere pages of a file stay in memory, or the file could not be replaced any more."""


class WeightFile:
    """The matrices of a network in the file that it was read from, which may take their place.

    The file may be replaced by another one of its name, as all of ours are; written over in place,
    it would change or end this process.
    """

    def __init__(self, network: nn.Module, path: Path) -> None:
        self._places: dict[int, Mapped] = {}
        if CAN_FORGET and path.is_file():
            there = dict(_mapped(path))
            self._places = {
                id(parameter): there[name]
                for name, parameter in network.named_parameters()
                if name in there and parameter.dim() > 1 and parameter.device.type == "cpu"
            }

    def leave(self, parameter: Tensor) -> None:
        """Let a parameter be the one of the file, if that has the same values."""
        there = self._places.get(id(parameter))
        if there is None or parameter.dtype != there.values.dtype:
            return
        if torch.equal(parameter.detach(), there.values):
            parameter.data = there.values
        there.forget()


class Mapped(NamedTuple):
    """A tensor of a file, which is a view of the file's bytes."""

    values: Tensor
    file: mmap.mmap
    start: int
    end: int

    def forget(self) -> None:
        """Its pages need not be in memory; what is on a page with other bytes may stay."""
        start = -(-self.start // mmap.PAGESIZE) * mmap.PAGESIZE
        end = self.end // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end:
            self.file.madvise(mmap.MADV_DONTNEED, start, end - start)


def _mapped(path: Path) -> Iterator[tuple[str, Mapped]]:
    """The float32 tensors of a safetensors file, by name."""
    with path.open("rb") as opened:
        size = int.from_bytes(opened.read(LENGTH), "little")
        header = json.loads(opened.read(size))
        # A write to a tensor changes this process's copy of a page, never the file.
        file = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
    for name, stated in header.items():
        if stated.get("dtype") == FLOAT32 and 0 not in stated["shape"]:
            start, end = (LENGTH + size + offset for offset in stated["data_offsets"])
            values = torch.frombuffer(
                file, dtype=torch.float32, count=(end - start) // 4, offset=start
            )
            yield name, Mapped(values.view(stated["shape"]), file, start, end)
