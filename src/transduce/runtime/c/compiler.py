"""Finds the C compiler of this machine, and runs it with a time limit."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
LONGEST = 120  # time limit in seconds; compiling takes two or three, on a busy machine far more
XCODE_SELECT = "/usr/bin/xcode-select"


def find_compiler() -> list[str]:
    """The command in $CC, or the first compiler on the PATH. Raises FileNotFoundError.

    Only absolute folders of the PATH are searched: the current folder may hold anything.
    """
    words = shlex.split(os.environ.get("CC", ""))
    if words:
        named = Path(words[0]).name != words[0]  # a path, not a name to search for
        found = words[0] if named else _on_path(words[0])
        if found is None or not Path(found).is_file():
            raise FileNotFoundError(f"CC names the compiler {words[0]}, which is not there")
        return [str(Path(found).absolute()), *words[1:]]
    compiler = next(filter(None, map(_on_path, COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"there is no C compiler ({', '.join(COMPILERS)})")
    if sys.platform == "darwin" and compiler.startswith("/usr/bin/"):
        _require_xcode()
    return [compiler]


def run_compiler(command: list[str]) -> str | None:
    """Run a compiler; returns its first error message, or None on success. Raises TimeoutError,
    OSError.

    A compiler starts further processes: all of them end with it.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        try:
            _, output = running.communicate(timeout=LONGEST)
        except BaseException as error:
            _end(running)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"{command[0]} did not end within {LONGEST} seconds") from None
            raise
    if running.returncode == 0:
        return None
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[0] if lines else "it gave no message"


def _on_path(name: str) -> str | None:
    endings = (".exe",) if os.name == "nt" else ("",)
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        for ending in endings:
            path = Path(folder) / f"{name}{ending}"
            if path.is_absolute() and path.is_file() and os.access(path, os.X_OK):
                return str(path)
    return None


def _require_xcode() -> None:
    """On a Mac without Xcode, /usr/bin/cc is not a compiler: running it opens an installer."""
    asked = subprocess.run(
        [XCODE_SELECT, "-p"], stdin=subprocess.DEVNULL, capture_output=True, timeout=LONGEST
    )
    if asked.returncode:
        raise FileNotFoundError(
            "there is no C compiler: Xcode's command line tools are not installed "
            "(`xcode-select --install`)"
        )


def _end(running: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(running.pid, signal.SIGKILL)
    else:
        running.kill()
