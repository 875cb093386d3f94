"""The library: compiled for this CPU the first time, then loaded from the cache.

TRANSDUCE_NATIVE=0 leaves it out.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path

from transduce.storage import default_cache_folder

SOURCES = ("products.c", "parts.c", "stack.c", "recurrent.c", "best.c")
HEADERS = ("native.h", "kernels.h", "vectors.h", "parts.h")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")
FOR_THIS_CPU = ("-march=native", "-mcpu=native")  # some compilers know the one, some the other
LONGEST = 120  # seconds that a compiler may take
TOLD = ("model name", "flags", "cpu part", "features")  # of a CPU, by Linux

Address = ctypes.c_void_p


def library() -> ctypes.CDLL | None:
    """The library, compiled if need be; None where that cannot be, and `why_not` says why."""
    return _opened()[0]


def library_if_open() -> ctypes.CDLL | None:
    """The library if somebody has wanted it before; nothing is compiled for this."""
    return library() if _opened.cache_info().currsize else None


def why_not() -> str | None:
    """Why there is no library here, in a few words; None where there is one."""
    return _opened()[1]


@cache
def _opened() -> tuple[ctypes.CDLL | None, str | None]:
    if os.environ.get("TRANSDUCE_NATIVE") == "0":
        return None, "TRANSDUCE_NATIVE is 0"
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    folder = default_cache_folder() / "native"
    path = folder / f"{_key()}.so"
    try:
        if not path.exists():
            if compiler is None:
                return None, f"there is no C compiler ({', '.join(COMPILERS)})"
            folder.mkdir(parents=True, exist_ok=True)
            _compile(compiler, path)
        return _declared(ctypes.CDLL(str(path))), None
    except (OSError, subprocess.SubprocessError) as error:
        return None, " ".join(str(error).split())


def _compile(compiler: str, path: Path) -> None:
    """Beside its place, then renamed: a second process or an interrupt leaves no half a file."""
    here = Path(__file__).parent
    sources = [str(here / name) for name in SOURCES]
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch) / path.name
        for flag in FOR_THIS_CPU:
            command = [compiler, *FLAGS, flag, *sources, "-o", str(made), "-lm"]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST)
            if ended.returncode == 0:
                made.replace(path)
                return
    said = ended.stderr.strip().splitlines() or ["it said nothing"]
    raise OSError(f"{compiler} cannot compile it: {said[0]}")


def _key() -> str:
    """Another for other sources, other flags and other CPUs: a home may be several machines'."""
    here = Path(__file__).parent
    facts = [platform.machine(), platform.system(), *FLAGS, *_cpu()]
    facts += [(here / name).read_text("utf-8") for name in (*SOURCES, *HEADERS)]
    return sha256("\n".join(facts).encode()).hexdigest()[:24]


def _cpu() -> list[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return [platform.processor()]
    return sorted({line for line in lines if line.lower().startswith(TOLD)})


def _declared(made: ctypes.CDLL) -> ctypes.CDLL:
    """With the types of what its functions take and give."""
    number, kind = ctypes.c_int64, ctypes.c_int32
    made.has_kernel.argtypes = [kind]
    made.has_kernel.restype = kind
    made.product_room.argtypes = [number, number]
    made.product_room.restype = number
    made.multiply.argtypes = [Address, Address, number, kind, Address, Address, Address, kind]
    made.multiply.restype = None
    made.stack_room.argtypes = [Address, number, number]
    made.stack_room.restype = number
    made.find_best.argtypes = [Address, number, number, number, Address, Address]
    made.find_best.restype = None
    made.recurrent_room.argtypes = [Address, number, number]
    made.recurrent_room.restype = number
    for work in (made.decoder_step, made.encode, made.recurrent_step):
        work.argtypes = [Address, Address]
        work.restype = kind
    return made
