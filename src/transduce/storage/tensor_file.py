"""A safetensors file that stays open, of which single tensors are read later."""

from __future__ import annotations

import json
import mmap
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from transduce.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

LENGTH = 8  # bytes of the number that a file begins with: the size of its header
TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I8": "int8"}
AT_ONCE = 1 << 26  # bytes; a system reads 2 GB at most


class TensorFile:
    """The tensors of a file, also when another one has taken its name since.

    Raises CheckpointError where it is no such file. That its numbers are whole is not checked, as
    `read_tensors` does: it is for a file that was read before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"the file {path} cannot be read ({error.strerror})") from None
        weakref.finalize(self, os.close, self._handle)
        self._state = self._now()
        try:
            size = int.from_bytes(self._bytes(0, LENGTH)[:], "little")
            if size > self._state[0]:
                raise ValueError("its header is longer than the file")
            header = json.loads(self._bytes(LENGTH, size)[:])
            self._start = LENGTH + size
            self._entries = {
                name: (TYPES[stated["dtype"]], list(stated["shape"]), *stated["data_offsets"])
                for name, stated in header.items()
                if stated.get("dtype") in TYPES and 0 not in stated["shape"]
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"the file {path} is not one of tensors ({error})") from None

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def read(self, name: str) -> Tensor:
        """One tensor. Raises CheckpointError where the file was written over in place; KeyError."""
        import torch

        kind, shape, start, end = self._entries[name]
        try:
            found = self._bytes(self._start + start, end - start)
        except (OSError, ValueError):
            found = None
        if found is None or self._now() != self._state:
            raise CheckpointError(
                f"the file {self._path} was written over in place while its model was in use; load "
                f"the model again"
            )
        return torch.frombuffer(found, dtype=getattr(torch, kind)).view(shape)

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._handle)
        return status.st_size, status.st_mtime_ns

    def _bytes(self, start: int, count: int) -> mmap.mmap:
        """In memory of its own, all of which goes back to the system when it is no longer used."""
        found = mmap.mmap(-1, count)
        view, done = memoryview(found), 0
        while done < count:
            got = os.preadv(self._handle, [view[done : done + AT_ONCE]], start + done)
            if not got:
                raise ValueError("it ends early")
            done += got
        return found
