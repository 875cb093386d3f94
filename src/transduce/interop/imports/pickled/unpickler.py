"""A reader of pickles that runs nothing: numbers, texts, containers and descriptions of tensors.

A pickle is a program for a small stack machine. Here the machine is written out, without any way
to import a module, to find a name in one or to call what was found: a global is kept as its name
(`Named`), and what a pickle makes of one is kept as `Made`. The few that mean something to a
checkpoint are interpreted where they are read, by name.

Why not `torch.load(weights_only=True)` with a list of allowed names: it imports and calls what is
on the list, cannot read settings of a toolkit that is not installed, and never returns from a key
that takes forever to hash (tests/unit/interop/imports/test_unpickler.py compares both).
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from transduce.errors import ModelError

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
