"""The file model.bin of CTranslate2: named variables, read without trust in what it claims.

All numbers are little-endian. A version; since version 2 the name and the revision of the model
specification; the variables, each with name, shape, type and bytes; since version 3 aliases, which
are second names. Integers have scales: the weight is integer / scale, one scale for each row (int8)
or one for all (int16).
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transduce.errors import ModelError

NEWEST = 6  # versions of the file
# By their number in the file. numpy has no bfloat16: it is read as its 16 bits.
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
STORED = ("<f4", "<i1", "<i2", "<i4", "<f2", "<u2")
OLD_TYPES = {4: "float32", 2: "int16", 1: "int8"}  # until version 3: by the bytes of a number
MAX_DIMENSIONS = 8
MIN_BYTES = 9  # of a variable: name, rank, type and size


@dataclass(frozen=True, slots=True)
class Variable:
    """Numbers as they are stored."""

    shape: tuple[int, ...]
    dtype: str
    """One of `TYPES`."""
    raw: NDArray[np.generic]
    """Part of the file, read when it is used."""

    @property
    def values(self) -> Tensor:
        """Without scales: floats as float32, integers as int32."""
        if self.dtype == "bfloat16":
            bits = self.raw.astype(np.uint32) << 16
            return torch.from_numpy(bits.view(np.float32).reshape(self.shape))
        kind = np.int32 if self.dtype.startswith("int") else np.float32
        return torch.from_numpy(self.raw.astype(kind).reshape(self.shape))


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The variables of a model.bin by name."""

    path: Path
    version: int
    specification: str
    """Such as TransformerSpec; empty in the oldest files."""
    revision: int
    variables: dict[str, Variable]
    aliases: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: object) -> bool:
        return name in self.variables or name in self.aliases

    def __iter__(self) -> Iterator[str]:
        """All names, aliases too."""
        yield from self.variables
        yield from self.aliases

    def variable(self, name: str) -> Variable:
        """As it is stored. Raises ModelError where there is none of this name."""
        found = self.variables.get(self.aliases.get(name, name))
        if found is None:
            raise ModelError(f"{self.path} has no variable {name}, which a model of its kind needs")
        return found

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A weight in float32, integers divided by their scales.

        Raises ModelError where it is missing, has another shape (if one is given) or holds
        something that is no number.
        """
        stored = self.variable(name)
        values = stored.values
        if stored.dtype.startswith("int"):
            values = self._scaled(name, values)
        if shape and values.shape != shape:
            raise ModelError(f"{self.path}: {name} is {list(values.shape)}, not {list(shape)}")
        if not bool(values.isfinite().all()):
            raise ModelError(f"{self.path}: {name} has values that are no finite numbers")
        return values

    def number(self, name: str, default: float | None = None) -> float:
        """A setting, such as the number of heads; `default` where it is not there."""
        if default is not None and name not in self:
            return default
        stored = self.variable(name)
        if math.prod(stored.shape) != 1:
            raise ModelError(f"{self.path}: {name} has {list(stored.shape)} values instead of one")
        value = float(stored.values.reshape(()))
        if not math.isfinite(value):
            raise ModelError(f"{self.path}: {name} is not a finite number")
        return value

    def text(self, name: str, default: str = "") -> str:
        """A setting that is a word."""
        if name not in self:
            return default
        letters = self.variable(name).values.to(torch.int64).flatten().tolist()
        return bytes(letter & 255 for letter in letters).decode("utf-8", "replace")

    def _scaled(self, name: str, values: Tensor) -> Tensor:
        name = self.aliases.get(name, name)  # the scales have no second name
        scale = self.variable(f"{name}_scale").values
        if not scale.is_floating_point() or not bool((scale.isfinite() & (scale > 0)).all()):
            raise ModelError(f"{self.path}: the scales of {name} are not all finite and above 0")
        if f"{name}_zero" in self:
            raise ModelError(
                f"{self.path}: {name} is quantized with zero points (AWQ), which cannot be read: "
                f"convert the original model without quantization"
            )
        if scale.numel() == 1:
            return values / scale.reshape(())
        if not values.dim() or scale.shape != values.shape[:1]:
            raise ModelError(
                f"{self.path}: {name} is {list(values.shape)} and has {scale.numel()} scales; "
                f"there must be one for each row"
            )
        return values / scale.reshape(-1, *[1] * (values.dim() - 1))


def read_model_file(path: Path) -> ModelFile:
    """The variables of a model.bin. Raises ModelError, in one sentence, for anything else.

    Nothing larger than the file is ever allocated, whatever it claims.
    """
    try:
        whole = _joined(parts) if (parts := parts_of(path)) else _mapped(path)
    except FileNotFoundError:
        raise ModelError(f"the file {path} is missing") from None
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise ModelError(f"the file {path} cannot be read ({error})") from None
    return _Reader(path, whole).read()


def parts_of(path: Path) -> list[Path]:
    """The parts that a file was split into, in order (model.bin.part1, model.bin.part2, …); none,
    where the file itself is there. Raises ModelError where one of them is missing."""
    if path.exists() or not path.parent.is_dir():
        return []
    numbered = {
        int(found[1]): one
        for one in path.parent.iterdir()
        if (found := re.fullmatch(re.escape(path.name) + r"\.part([0-9]{1,4})", one.name))
    }
    if not numbered:
        return []
    first, last = min(min(numbered), 1), max(numbered)
    for number in range(first, last + 1):
        if number not in numbered:
            raise ModelError(
                f"{path} is in parts, and {path.name}.part{number} is missing: put all of them "
                f"into {path.parent}"
            )
    return [numbered[number] for number in range(first, last + 1)]


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _joined(parts: Sequence[Path]) -> mmap.mmap:
    """Parts one after the other, in memory."""
    whole = mmap.mmap(-1, sum(part.stat().st_size for part in parts))
    for part in parts:
        whole.write(part.read_bytes())
    return whole


class _Reader:
    def __init__(self, path: Path, whole: mmap.mmap) -> None:
        self.path, self.whole, self.place, self.size = path, whole, 0, len(whole)

    def read(self) -> ModelFile:
        version = self._uint32()
        if not 1 <= version <= NEWEST:
            raise ModelError(
                f"{self.path} is no model of CTranslate2, or of a version that is not known: it "
                f"begins with {version}; versions 1 to {NEWEST} can be read"
            )
        specification, revision = "", 1
        if version >= 2:
            specification, revision = self._string(), self._uint32()
        variables: dict[str, Variable] = {}
        for _ in range(self._count(MIN_BYTES)):
            name = self._string()
            if name in variables:
                raise self._damaged(f"{name} is there twice")
            variables[name] = self._variable(name, version)
        aliases: dict[str, str] = {}
        for _ in range(self._count(4) if version >= 3 else 0):
            alias, name = self._string(), self._string()
            name = aliases.get(name, name)
            if name not in variables or alias in variables or alias in aliases:
                raise self._damaged(f"its alias {alias} is for no variable, or there twice")
            aliases[alias] = name
        if self.place != self.size:
            raise self._damaged(f"{self.size - self.place} bytes are left after its end")
        return ModelFile(self.path, version, specification, revision, variables, aliases)

    def _variable(self, name: str, version: int) -> Variable:
        rank = self._take(1)[0]
        if rank > MAX_DIMENSIONS:
            raise self._damaged(f"{name} has {rank} dimensions")
        shape = tuple(self._uint32() for _ in range(rank))
        if not all(shape):
            raise self._damaged(f"{name} is empty")
        kind = self._take(1)[0]
        count = math.prod(shape)
        if version >= 4:
            if kind >= len(TYPES):
                raise self._damaged(f"{name} has the unknown type {kind}")
            dtype, size = TYPES[kind], self._uint32()
        else:
            if kind not in OLD_TYPES:
                raise self._damaged(f"{name} has numbers of {kind} bytes")
            dtype, size = OLD_TYPES[kind], self._uint32() * kind
        stored = np.dtype(STORED[TYPES.index(dtype)])
        # The size is a uint32 and wraps in files with larger variables; the shape says it all.
        if size != (count * stored.itemsize) % 2**32:
            raise self._damaged(f"{name} has {size} bytes, which do not fit its shape")
        begin = self._skip(count * stored.itemsize)
        raw = np.frombuffer(self.whole, stored, count, begin)
        return Variable(shape, dtype, raw)

    def _count(self, minimum: int) -> int:
        """How many follow; each takes at least so many bytes."""
        count = self._uint32()
        if count * minimum > self.size - self.place:
            raise self._damaged(f"it announces {count} variables or aliases")
        return count

    def _string(self) -> str:
        (length,) = struct.unpack("<H", self._take(2))
        text = self._take(length).removesuffix(b"\0").decode("utf-8", "replace")
        if not text.isprintable():
            raise self._damaged("a name has characters that cannot be printed")
        return text

    def _uint32(self) -> int:
        number: int = struct.unpack("<I", self._take(4))[0]
        return number

    def _take(self, length: int) -> bytes:
        begin = self._skip(length)
        return self.whole[begin : begin + length]

    def _skip(self, length: int) -> int:
        begin, self.place = self.place, self.place + length
        if self.place > self.size:
            self.place = begin
            raise self._damaged("it ends too early")
        return begin

    def _damaged(self, reason: str) -> ModelError:
        return ModelError(
            f"{self.path} is damaged, or no model of CTranslate2: {reason} (at byte {self.place})"
        )
