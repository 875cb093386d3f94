"""Compiles the C library for this CPU at first use, then loads it from the cache.

Code is loaded only from a folder that nobody else can write to, and only from a file whose name
contains the hash of its content: a damaged file is compiled again. A failure is not tried again for
a day. TRANSDUCE_NATIVE=0 disables the library.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import sys
import tempfile
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from transduce.runtime.c.compiler import find_compiler, run_compiler
from transduce.runtime.c.private_folder import is_private_file, make_private
from transduce.runtime.c.product import Address
from transduce.runtime.c.recurrent import RECURRENT_STRUCTURES
from transduce.runtime.c.slots import Slots
from transduce.runtime.c.stack import STRUCTURES, layout
from transduce.storage import default_cache_folder

SOURCES = ("threads.c", "products.c", "parts.c", "stack.c", "recurrent.c", "best.c", "slots.c")
HEADERS = (
    "native.h",
    "threads.h",
    "kernels.h",
    "neon_float32.h",
    "vectors.h",
    "parts.h",
    "stack.h",
)
FLAGS = (
    "-O3",
    "-std=gnu11",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fno-math-errno",
    "-fno-trapping-math",
)
# flags for this CPU: some compilers have the one, some the other
FOR_THIS_CPU = ("-march=native", "-mcpu=native")
RETRY_AFTER = 24 * 60 * 60  # seconds before a failed compilation is tried again
# fields of /proc/cpuinfo that identify the CPU
CPU_FIELDS = ("model name", "flags", "cpu part", "features")
DISABLED = "TRANSDUCE_NATIVE is 0"


class NativeLibrary:
    """The C library of this process: not wanted yet, loaded, or unavailable and why."""

    def __init__(self) -> None:
        self._result: tuple[ctypes.CDLL | None, str | None] | None = None

    def load(self) -> ctypes.CDLL | None:
        """The library, compiled and loaded by the first call; None where that is not possible."""
        if self._result is None:
            self._result = _try_to_open()
        return self._result[0]

    @property
    def loaded(self) -> ctypes.CDLL | None:
        """The library if `load` was called and succeeded; this never compiles anything."""
        return None if self._result is None else self._result[0]

    @property
    def why_not(self) -> str | None:
        """Why the library cannot be used here, in a few words; None where it can."""
        self.load()
        return None if self._result is None else self._result[1]

    def reset(self) -> None:
        """Back to "not wanted yet": the next `load` looks into the cache again."""
        self._result = None


#: One for each process, as a shared library is loaded for the whole process.
LIBRARY = NativeLibrary()


def library() -> ctypes.CDLL | None:
    """The C library, compiled if need be; None where that is not possible (see `why_not`)."""
    return LIBRARY.load()


def share_threads(callers: int) -> None:
    """So many threads of this process compute side by side from now on: each has its share of the
    cores. Nothing where the library is not in use."""
    made = LIBRARY.loaded
    if made is not None:
        made.share_threads(callers)


def why_not() -> str | None:
    """Why there is no C library here, in a few words; None where there is one."""
    return LIBRARY.why_not


def _try_to_open() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or the reason why there is none, which is printed as well."""
    if os.environ.get("TRANSDUCE_NATIVE") == "0":
        return None, DISABLED
    try:
        return _open(), None
    except (OSError, ValueError) as error:  # ValueError: quotes in $CC that do not match
        why = " ".join(str(error).split())
    print(f"transduce: int8 is computed by torch, which is slower: {why}", file=sys.stderr)
    return None, why


def _open() -> ctypes.CDLL:
    """Load the library from the cache, else compile it. Raises OSError."""
    folder = make_private(default_cache_folder() / "native")
    key = _key()
    for kept in sorted(folder.glob(f"{key}-*.so")):
        found = _load(kept)
        if found is not None:
            return found
        with suppress(OSError):
            kept.unlink()
    compiler = find_compiler()
    failure = folder / f"{key}.json"
    facts = {"compiler": compiler, "changed": Path(compiler[0]).stat().st_mtime}
    _raise_recorded_failure(failure, facts)
    try:
        made = _load(_compile(compiler, folder, key))
        if made is None:
            raise OSError(f"what {compiler[0]} compiled cannot be loaded, or its structures differ")
    except OSError as error:
        with suppress(OSError):
            record = {**facts, "why": str(error), "when": time.time()}
            failure.write_text(json.dumps(record), "utf-8")
        raise
    return made


def _raise_recorded_failure(failure: Path, facts: dict[str, object]) -> None:
    """Raise the recorded failure again, if this compiler failed less than a day ago."""
    try:
        record = json.loads(failure.read_text("utf-8"))
        same = all(record[name] == value for name, value in facts.items())
        age, why = time.time() - record["when"], str(record["why"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if same and 0 <= age < RETRY_AFTER:
        raise OSError(f"{why} (tried again after a day; to try now, remove {failure})")


def _load(path: Path) -> ctypes.CDLL | None:
    """The library of a file that is intact, owned by this user, and has the expected structures."""
    try:
        content = path.read_bytes()
        if not is_private_file(path) or _content_hash(content) != path.stem.rpartition("-")[2]:
            return None
        made = _declared(ctypes.CDLL(str(path)))
        same = _has_layout(made, "layout", layout(STRUCTURES))
        same = same and _has_layout(made, "recurrent_layout", layout(RECURRENT_STRUCTURES))
        same = same and _has_layout(made, "slots_layout", layout([Slots]))
        return made if same else None
    except (OSError, AttributeError, ValueError):  # the last two: a symbol is missing
        return None


def _has_layout(made: ctypes.CDLL, name: str, expected: list[int]) -> bool:
    """Whether the C structures have the same sizes and field offsets as ours."""
    length = getattr(made, f"{name}_length")
    length.argtypes, length.restype = [], ctypes.c_int64
    if length() != len(expected):
        return False
    return list((ctypes.c_int64 * len(expected)).in_dll(made, name)) == expected


def _compile(compiler: list[str], folder: Path, key: str) -> Path:
    """Compile into a temporary folder, then rename: an interrupt leaves no partial file."""
    here = Path(__file__).parent
    sources = [str(here / name) for name in SOURCES]
    message: str | None = None
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "made.so"
        for flag in FOR_THIS_CPU:
            message = run_compiler([*compiler, *FLAGS, flag, *sources, "-o", str(made), "-lm"])
            if message is None:
                made.chmod(0o700)
                path = folder / f"{key}-{_content_hash(made.read_bytes())}.so"
                made.replace(path)
                return path
    raise OSError(f"{compiler[0]} cannot compile it: {message}")


def _content_hash(content: bytes) -> str:
    return sha256(content).hexdigest()[:32]


def _key() -> str:
    """A hash of sources, flags and CPU: a home folder may be shared by several machines."""
    here = Path(__file__).parent
    facts = [platform.machine(), platform.system(), os.environ.get("CC", ""), *FLAGS, *_cpu()]
    facts += [(here / name).read_text("utf-8") for name in (*SOURCES, *HEADERS)]
    return sha256("\n".join(facts).encode("utf-8", "surrogateescape")).hexdigest()[:24]


def _cpu() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return [platform.processor()]
    return sorted({line for line in lines if line.lower().startswith(CPU_FIELDS)})


def _declared(made: ctypes.CDLL) -> ctypes.CDLL:
    """The library with argument and result types set."""
    number, kind = ctypes.c_int64, ctypes.c_int32
    made.has_kernel.argtypes = [kind]
    made.has_kernel.restype = kind
    made.product_room.argtypes = [number, number]
    made.product_room.restype = number
    made.multiply.argtypes = [Address, Address, number, kind, Address, Address, Address, kind]
    made.multiply.restype = None
    made.advance_slots.argtypes = [Address, Address, Address, number, ctypes.c_double]
    made.advance_slots.restype = None
    made.share_threads.argtypes, made.share_threads.restype = [number], None
    made.stack_room.argtypes = [Address, number, number]
    made.stack_room.restype = number
    made.find_best.argtypes = [Address, number, number, number, Address, Address]
    made.find_best.restype = None
    made.recurrent_room.argtypes = [Address, number, number]
    made.recurrent_room.restype = number
    for work in (made.decoder_step, made.encode, made.recurrent_step):
        work.argtypes = [Address, Address]
    made.decoder_step.restype = made.encode.restype = None
    made.recurrent_step.restype = kind
    return made
