"""Checkpoints of torch are pickles: an interpreter builds their tensors and calls nothing."""

from __future__ import annotations

import math
import mmap
import pickletools
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from transduce.errors import ModelError

# ----------------------------------------------------------------------------------------------
# A reader of pickles that runs nothing: numbers, texts, containers and descriptions of tensors.
#
# A pickle is a program for a small stack machine. Here the machine is written out, without any
# way to import a module, to find a name in one or to call what was found: a global is kept as its
# name (`Named`), and what a pickle makes of one is kept as `Made`. The few that mean something to
# a checkpoint are interpreted where they are read, by name.
#
# Why not `torch.load(weights_only=True)` with a list of allowed names: it imports and calls what is
# on the list, cannot read settings of a toolkit that is not installed, and never returns from a key
# that takes forever to hash (tests/unit/interop/imports/test_unpickler.py compares both).

LONGEST = 64 << 20  # bytes of a pickle
MAX_OPERATIONS = 2_000_000  # operations; each takes some microseconds and some hundred bytes


@dataclass(frozen=True, slots=True)
class Named:
    """A global, such as collections.OrderedDict: its name and nothing more."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(slots=True, eq=False)
class Made:
    """What a pickle would have made by calling something: with what, and its later state."""

    by: Any
    arguments: tuple[Any, ...]
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """Something outside of the pickle, such as the numbers of a tensor."""

    id: Any


class _Mark:
    pass


MARK = _Mark()
DICTIONARIES = (Named("collections", "OrderedDict"), Named("collections", "defaultdict"))


def read_pickle(stream: BinaryIO) -> Any:
    """The value of the pickle at the place of a stream, which is left behind its end.

    Raises ModelError for what is no pickle. Whatever it holds, nothing of it is called.
    """
    machine = _Machine()
    try:
        limited = cast(BinaryIO, _Limited(stream))  # all that is asked of it
        for count, (operation, argument, _) in enumerate(pickletools.genops(limited)):
            if count >= MAX_OPERATIONS:
                raise ModelError(f"its pickle has more than {MAX_OPERATIONS:,} operations")
            machine.do(operation.name, argument)
        return machine.result()
    except ModelError:
        raise
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        EOFError,
        MemoryError,
        RecursionError,
        OSError,
    ) as error:
        raise ModelError(f"its pickle is damaged ({type(error).__name__})") from None


class _Limited:
    """A stream of which at most LONGEST bytes are read."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, LONGEST
        self.tell = stream.tell

    def read(self, size: int) -> bytes:
        if size > self._left:
            raise ModelError(f"its pickle has more than {LONGEST:,} bytes, or is damaged")
        return self._taken(self._stream.read(size))

    def readline(self) -> bytes:
        return self._taken(self._stream.readline(self._left + 1))

    def _taken(self, found: bytes) -> bytes:
        self._left -= len(found)
        if self._left < 0:
            raise ModelError(f"its pickle has more than {LONGEST:,} bytes")
        return found


class _Machine:
    """The stack, and the memo of what is used again."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.value: Any = MARK

    def result(self) -> Any:
        if self.value is MARK or self.stack:
            raise ModelError("its pickle does not end")
        return self.value

    def do(self, name: str, argument: Any) -> None:
        if name in VALUES:
            self.stack.append(argument)
        elif name in IDLE:
            return
        elif name in PUTS:
            number = len(self.memo) if name == "MEMOIZE" else int(argument)
            self.memo[number] = self._top()
        elif name in GETS:
            self.stack.append(self.memo[int(argument)])
        elif name in ACTIONS:
            ACTIONS[name](self)
        elif name in ("GLOBAL", "INST"):
            module, _, last = str(argument).partition(" ")
            named = Named(module, last)
            self.stack.append(Made(named, self._marked()) if name == "INST" else named)
        elif name == "PERSID":
            self.stack.append(Persistent(argument))
        else:
            raise ModelError(f"its pickle has the operation {name}, which is not read")

    # ------------------------------------------------------------------------- operations

    def _top(self) -> Any:
        if not self.stack or self.stack[-1] is MARK:
            raise ModelError("its pickle is damaged (the stack is empty)")
        return self.stack[-1]

    def _pop(self) -> Any:
        value = self._top()
        self.stack.pop()
        return value

    def _marked(self) -> tuple[Any, ...]:
        """What was put since the last mark."""
        found: list[Any] = []
        while self.stack:
            value = self.stack.pop()
            if value is MARK:
                return tuple(reversed(found))
            found.append(value)
        raise ModelError("its pickle is damaged (a mark is missing)")

    def _tuple(self, size: int) -> None:
        if size:
            some = [self._pop() for _ in range(size)]
            self.stack.append(tuple(reversed(some)))
        else:
            self.stack.append(())

    def _stop(self) -> None:
        self.value = self._pop()

    def _drop(self) -> None:
        if not self.stack:
            raise ModelError("its pickle is damaged (the stack is empty)")
        self.stack.pop()  # of a mark, too

    def _drop_to_mark(self) -> None:
        self._marked()

    def _copy_top(self) -> None:
        self.stack.append(self._top())

    def _empty(self, kind: Callable[[], Any]) -> None:
        self.stack.append(kind())

    def _from_marked(self, kind: Callable[[tuple[Any, ...]], Any]) -> None:
        self.stack.append(kind(self._marked()))

    def _append(self, *values: Any) -> None:
        target = self._top()
        if isinstance(target, list):
            target.extend(values)
        elif not isinstance(target, Made):
            raise ModelError("its pickle is damaged (no list to append to)")

    def _append_one(self) -> None:
        self._append(self._pop())

    def _append_marked(self) -> None:
        self._append(*self._marked())

    def _set(self, pairs: tuple[Any, ...]) -> None:
        target = self._top()
        found = target.items if isinstance(target, Made) else target
        if not isinstance(found, dict) or len(pairs) % 2:
            raise ModelError("its pickle is damaged (no dict to put into)")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            # Keys of other kinds are of no use here, and hashing some takes forever.
            if isinstance(key, str | int | float | bytes | None):
                found[key] = value

    def _set_one(self) -> None:
        value, key = self._pop(), self._pop()
        self._set((key, value))

    def _set_marked(self) -> None:
        self._set(self._marked())

    def _persistent(self) -> None:
        self.stack.append(Persistent(self._pop()))

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(name, str) or not isinstance(module, str):
            raise ModelError("its pickle is damaged (a global without a name)")
        self.stack.append(Named(module, name))

    def _call(self) -> None:
        """REDUCE, NEWOBJ: what would be called is kept, with its arguments."""
        arguments, by = self._pop(), self._pop()
        if not isinstance(arguments, tuple):
            raise ModelError("its pickle is damaged (arguments that are no tuple)")
        plain = isinstance(by, Named) and by in DICTIONARIES and len(arguments) <= 1
        self.stack.append({} if plain else Made(by, arguments))

    def _call_with_names(self) -> None:
        self._pop()  # keyword arguments
        self._call()

    def _object(self) -> None:
        marked = self._marked()
        if not marked:
            raise ModelError("its pickle is damaged (an object of nothing)")
        self.stack.append(Made(marked[0], marked[1:]))

    def _build(self) -> None:
        state = self._pop()
        target = self._top()
        if isinstance(target, Made):
            target.state = state
        elif not isinstance(target, dict):  # attributes of an OrderedDict: not needed
            raise ModelError("its pickle is damaged (a state of nothing)")


NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE")
BYTES = ("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
VALUES = frozenset((*NUMBERS, *TEXTS, *BYTES))
IDLE = frozenset(["PROTO", "FRAME"])
PUTS = frozenset(["PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"])
GETS = frozenset(["GET", "BINGET", "LONG_BINGET"])


def _pairs(values: tuple[Any, ...]) -> dict[Any, Any]:
    machine = _Machine()
    machine.stack.append({})
    machine._set(values)
    found: dict[Any, Any] = machine.stack[0]
    return found


ACTIONS: dict[str, Callable[[_Machine], None]] = {
    "NONE": lambda m: m.stack.append(None),
    "NEWTRUE": lambda m: m.stack.append(True),
    "NEWFALSE": lambda m: m.stack.append(False),
    "MARK": lambda m: m.stack.append(MARK),
    "STOP": _Machine._stop,
    "POP": _Machine._drop,
    "POP_MARK": _Machine._drop_to_mark,
    "DUP": _Machine._copy_top,
    "EMPTY_LIST": lambda m: m._empty(list),
    "EMPTY_DICT": lambda m: m._empty(dict),
    "EMPTY_SET": lambda m: m._empty(list),  # as a list: what is in it may not be hashable
    "EMPTY_TUPLE": lambda m: m._tuple(0),
    "TUPLE1": lambda m: m._tuple(1),
    "TUPLE2": lambda m: m._tuple(2),
    "TUPLE3": lambda m: m._tuple(3),
    "TUPLE": lambda m: m._from_marked(tuple),
    "LIST": lambda m: m._from_marked(list),
    "FROZENSET": lambda m: m._from_marked(list),
    "DICT": lambda m: m._from_marked(_pairs),
    "APPEND": _Machine._append_one,
    "APPENDS": _Machine._append_marked,
    "ADDITEMS": _Machine._append_marked,
    "SETITEM": _Machine._set_one,
    "SETITEMS": _Machine._set_marked,
    "BINPERSID": _Machine._persistent,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._call,
    "NEWOBJ": _Machine._call,
    "NEWOBJ_EX": _Machine._call_with_names,
    "OBJ": _Machine._object,
    "BUILD": _Machine._build,
}


# ----------------------------------------------------------------------------------------------
# A checkpoint file of torch, read without running anything of it: settings and tensors.
#
# Two formats: a zip archive with a pickle and a file for the numbers of each storage, and the
# older one, five pickles and then the numbers of all storages.

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
