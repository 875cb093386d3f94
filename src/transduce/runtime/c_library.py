"""The C library: decoding steps, encoders, matrix products and top-k with SIMD, for CPUs.

It is built from the files in c/ when the package is installed (CMakeLists.txt), with a variant for
each kind of CPU, and loaded at first use: the best variant that this CPU runs. Where there is no
library, torch does the work, and a sentence says so once. TRANSDUCE_NATIVE=0 turns it off.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import c_double, c_int32, c_int64
from pathlib import Path
from typing import Any

from transduce.runtime.structures import LAYOUTS, Address, layout
from transduce.shared_library import LIBRARY_FILE, is_disabled

FILE = LIBRARY_FILE
DISABLED = "TRANSDUCE_NATIVE is 0"
NOT_BUILT = (
    "the C library was not built when transduce was installed; install a wheel, or a C compiler "
    "(gcc or clang) and then transduce again (in a checkout: make library)"
)
OUTDATED = (
    "the C library is not of this version; install transduce again (in a checkout: make library)"
)


class Library:
    """The functions of one variant; their documentation is in the headers of c/."""

    def __init__(self, loaded: ctypes.CDLL, variant: str) -> None:
        self.variant = variant

        def function(name: str, result: Any, *arguments: Any) -> Any:
            found = getattr(loaded, f"{name}_{variant}")
            found.restype, found.argtypes = result, arguments
            return found

        self.has_kernel = function("has_kernel", c_int32, c_int32)
        self.product_workspace = function("product_workspace", c_int64, c_int64, c_int64)
        operands = (Address, Address, c_int64, c_int32, Address, Address, Address, c_int32)
        self.multiply = function("multiply", None, *operands)
        self.stack_workspace = function("stack_workspace", c_int64, Address, c_int64, c_int64)
        self.decoder_step = function("decoder_step", None, Address, Address)
        self.encode = function("encode", None, Address, Address)
        self.sequences_workspace = function(
            "sequences_workspace", c_int64, Address, c_int64, c_int64, c_int64
        )
        self.read_sequences = function("read_sequences", None, Address, Address)
        self.start_workspace = function("start_workspace", c_int64, Address, c_int64, c_int64)
        self.start_decoder = function("start_decoder", None, Address, Address)
        self.recurrent_workspace = function(
            "recurrent_workspace", c_int64, Address, c_int64, c_int64
        )
        self.recurrent_step = function("recurrent_step", c_int32, Address, Address)
        self.find_copied = function("find_copied", c_int32, Address)
        self.advance_slots = function(
            "advance_slots", None, Address, Address, Address, c_int64, c_double
        )
        self.find_best = function(
            "find_best", None, Address, c_int64, c_int64, c_int64, Address, Address
        )
        self.share_threads = loaded.share_threads  # one pool of threads for all variants
        self.share_threads.restype, self.share_threads.argtypes = None, (c_int64,)
        for table, structures in LAYOUTS.items():
            length, expected = function(f"{table}_length", c_int64)(), layout(structures)
            numbers = (c_int64 * length).in_dll(loaded, f"{table}_{variant}")
            if list(numbers) != expected:
                raise ValueError(OUTDATED)


class LibraryOfProcess:
    """The C library of this process: not wanted yet, loaded, or unavailable and why."""

    def __init__(self) -> None:
        self._result: tuple[Library | None, str | None] | None = None

    def load(self) -> Library | None:
        """The library, loaded by the first call; None where there is none."""
        if self._result is None:
            self._result = _try_to_open()
        return self._result[0]

    @property
    def loaded(self) -> Library | None:
        """The library if `load` was called and succeeded."""
        return None if self._result is None else self._result[0]

    @property
    def why_not(self) -> str | None:
        """Why the library cannot be used here; None where it can."""
        self.load()
        return None if self._result is None else self._result[1]

    def reset(self) -> None:
        """Back to "not wanted yet": the next `load` looks for the file again."""
        self._result = None


#: One for each process, as a shared library is loaded for the whole process.
LIBRARY = LibraryOfProcess()


def library() -> Library | None:
    """The C library; None where there is none (see `why_not`), which the first call says."""
    return LIBRARY.load()


def share_threads(callers: int) -> None:
    """So many threads of this process compute side by side from now on: each has its share of the
    cores. Nothing where the library is not in use."""
    loaded = LIBRARY.loaded
    if loaded is not None:
        loaded.share_threads(callers)


def why_not() -> str | None:
    """Why there is no C library here; None where there is one."""
    return LIBRARY.why_not


def open_variants(file: Path) -> list[Library]:
    """The variants of the library in a file that this CPU runs, the best first. Raises OSError,
    ValueError."""
    if not file.is_file():
        raise FileNotFoundError(NOT_BUILT)
    loaded = ctypes.CDLL(str(file))
    try:
        name = loaded.variant_name
        name.restype, name.argtypes = ctypes.c_char_p, (c_int64,)
        found: list[Library] = []
        while (variant := name(len(found))) is not None:
            found.append(Library(loaded, variant.decode("ascii")))
        return found
    except AttributeError:  # a function is missing
        raise ValueError(OUTDATED) from None


def _try_to_open() -> tuple[Library | None, str | None]:
    """The library, or the reason why there is none, which is printed as well."""
    if is_disabled():
        return None, DISABLED
    try:
        return open_variants(FILE)[0], None
    except (OSError, ValueError) as error:  # also of another system, or damaged
        why = " ".join(str(error).split())
    print(f"transduce: decoding on this CPU runs in torch, which is slower: {why}", file=sys.stderr)
    return None, why
