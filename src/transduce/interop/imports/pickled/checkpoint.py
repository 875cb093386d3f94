"""A checkpoint file of torch, read without running anything of it: settings and tensors.

Two formats: a zip archive with a pickle and a file for the numbers of each storage, and the older
one, five pickles and then the numbers of all storages.
"""

from __future__ import annotations

import math
import mmap
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.errors import ModelError
from transduce.interop.imports.pickled.unpickler import (
    LONGEST,
    Made,
    Named,
    Persistent,
    read_pickle,
)

MAGIC = 0x1950A86A20F9469CFC6C  # the first number of the older format
TYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
MAX_DIMENSIONS = 8
MAX_TIMES = 8  # that the numbers of a file may be used: tied weights are there under two names
# Names in the file; nothing of torch is called by them.
UTILITIES = ".".join(("torch", "_utils"))
PARAMETER = Named(UTILITIES, "_rebuild_parameter")
TENSOR = Named(UTILITIES, "_rebuild_tensor_v2")


@dataclass
class Checkpoint:
    """What a file holds, and where the numbers of its tensors are."""

    path: Path
    root: Any
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Of the older format: where a storage begins, and how many bytes it has."""

    def tensors(self, found: Any) -> dict[str, Tensor]:
        """The tensors of a dict by name; what is no tensor is left out."""
        if not isinstance(found, dict):
            raise ModelError(f"{self.path} has no weights by name")
        read, capacity = dict[str, Tensor](), MAX_TIMES * self.path.stat().st_size
        for name, value in found.items():
            if not isinstance(name, str):
                raise ModelError(f"{self.path} has weights whose names are no texts")
            tensor = self._tensor(value, name)
            if tensor is None:
                continue
            capacity -= tensor.numel() * tensor.element_size()
            if capacity < 0:
                raise ModelError(f"{self.path} has tensors that are far larger than the file")
            read[name] = tensor
        return read

    def _tensor(self, value: Any, name: str) -> Tensor | None:
        if isinstance(value, Made) and value.by == PARAMETER and value.arguments:
            value = value.arguments[0]
        if not isinstance(value, Made) or value.by != TENSOR or len(value.arguments) < 4:
            return None
        storage, offset, size, stride = value.arguments[:4]
        storage_T = self._storage(storage, name)
        whole = all(
            isinstance(numbers, tuple)
            and len(numbers) <= MAX_DIMENSIONS
            and all(isinstance(number, int) and 0 <= number < 2**40 for number in numbers)
            for numbers in (size, stride)
        )
        if not whole or len(size) != len(stride) or not isinstance(offset, int) or offset < 0:
            raise self._damaged(name)
        last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        count = math.prod(size)
        # As many numbers as there are, not more by repeating them: memory is as large as the file.
        if count and (offset + last >= len(storage_T) or count > len(storage_T)):
            raise self._damaged(name)
        if not count:
            return torch.zeros(size, dtype=storage_T.dtype)
        return storage_T.as_strided(size, stride, offset).clone()

    def _storage(self, found: Any, name: str) -> Tensor:
        named = found.id if isinstance(found, Persistent) else None
        if not isinstance(named, tuple) or len(named) < 5 or named[0] != "storage":
            raise self._damaged(name)
        kind, key, count = named[1], named[2], named[4]
        dtype = TYPES.get(kind.name) if isinstance(kind, Named) and kind.module == "torch" else None
        if (
            dtype is None
            or not isinstance(key, str)
            or not isinstance(count, int)
            or not 0 <= count < 2**40
        ):
            raise self._damaged(name)
        raw = self._bytes(key, count * dtype.itemsize, name)
        return torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.zeros(0, dtype=dtype)

    def _bytes(self, key: str, size: int, name: str) -> bytes:
        if self.places:
            begin, length = self.places.get(key, (0, -1))
            if size > length:
                raise self._damaged(name)
            with self.path.open("rb") as file:
                file.seek(begin)
                return file.read(size)
        try:
            with zipfile.ZipFile(self.path) as archive:
                folder = _pickle_of(archive).rpartition("/")[0]
                entry = archive.getinfo(f"{folder}/data/{key}")
                # torch does not compress; what is compressed could be much larger than the file.
                if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != size:
                    raise self._damaged(name)
                return archive.read(entry)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise self._damaged(name, f" ({error})") from None

    def _damaged(self, name: str, why: str = "") -> ModelError:
        return ModelError(f"{self.path} is damaged: {name} is no tensor of this file{why}")


def read_checkpoint(path: Path) -> Checkpoint:
    """The settings of a checkpoint, and its tensors on demand. Raises ModelError."""
    try:
        if zipfile.is_zipfile(path):
            return _read_archive(path)
        return _read_older(path)
    except ModelError as error:
        raise ModelError(f"{path} cannot be read: {error}") from None
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ModelError(f"{path} cannot be read ({error})") from None


def _pickle_of(archive: zipfile.ZipFile) -> str:
    found = [name for name in archive.namelist() if name.count("/") == 1]
    pickle = next((name for name in found if name.endswith("/data.pkl")), None)
    if pickle is None:
        raise ModelError("it is a zip archive, but not a checkpoint of torch")
    return pickle


def _read_archive(path: Path) -> Checkpoint:
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(_pickle_of(archive))
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > LONGEST:
            raise ModelError("its pickle is compressed, or far too large")
        return Checkpoint(path, read_pickle(BytesIO(archive.read(entry))))


def _read_older(path: Path) -> Checkpoint:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        if read_pickle(file) != MAGIC:
            raise ModelError("it is not a checkpoint of torch")
        for _ in range(2):  # versions, and of the machine that wrote it
            read_pickle(file)
        root = read_pickle(file)
        keys = read_pickle(file)
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise ModelError("it does not say which storages it has")
        sizes = _storage_sizes(root)
        places: dict[str, tuple[int, int]] = {}
        place = file.tell()
        for key in keys:
            count = int.from_bytes(whole[place : place + 8], "little", signed=True)
            size = count * sizes.get(key, 0)
            if not 0 <= size <= len(whole) - place - 8:
                raise ModelError("a storage is larger than the file")
            if key not in sizes:
                raise ModelError("it has numbers of no tensor, so the others cannot be found")
            places[key] = (place + 8, size)
            place += 8 + size
        return Checkpoint(path, root, places)


def _storage_sizes(root: Any) -> dict[str, int]:
    """The bytes of a number of each storage that a value mentions; without recursion."""
    found: dict[str, int] = {}
    waiting, seen = [root], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        if isinstance(value, Persistent):
            named = value.id
            if (
                isinstance(named, tuple)
                and len(named) > 2
                and isinstance(named[1], Named)
                and isinstance(named[2], str)
            ):
                dtype = TYPES.get(named[1].name)
                found[named[2]] = 0 if dtype is None else dtype.itemsize
        elif isinstance(value, dict | list | tuple | Made):
            seen.add(id(value))
            if isinstance(value, Made):
                waiting += [value.arguments, value.state, value.items]
            else:
                waiting += value.values() if isinstance(value, dict) else value
    return found
