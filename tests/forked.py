"""Programs that need torch, started without the seconds that loading it takes.

`Forked` is subprocess.Popen for `[sys.executable, ...]`: a process of its own, with its number, its
streams, signals and end. It is forked from a server that has everything imported, one for each
process that runs tests. Where there is no such thing, or where the environment has settings that a
program reads while it is loaded, it is a plain subprocess.Popen.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import resource
import select
import socket
import subprocess
import sys
import termios
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, AnyStr, Generic

TESTS = Path(__file__).parent
# Read by Python, by the loader, by OpenMP and by libraries when they are loaded.
READ_AT_START = ("PYTHON", "LC_", "LANG", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_")
READ_AT_START += ("ATEN_", "TORCH", "PYTORCH", "CUDA_", "MALLOC_")
# Modules are found already; torch sets the other one itself when it loads its compiler.
OTHERS = ("PYTHONPATH", "TORCHINDUCTOR_CACHE_DIR")
# Of the server: one thread, since a fork has no others.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}

# What most commands import, at once or when they need it.
LOADED = [
    "jiwer",
    "numpy.ctypeslib",
    "numpy.ma",
    "pydantic.type_adapter",
    "rich._emoji_codes",
    "rich.console",
    "rich.live",
    "safetensors.torch",
    "torch.profiler",
    "torch.utils.tensorboard",
    "transduce.cli.commands.evaluate",
    "transduce.cli.commands.run",
    "transduce.cli.commands.train",
    "transduce.cli.main",
    "transduce.evaluation.evaluate",
    "transduce.evaluation.metrics",
    "transduce.interop.engine",
    "transduce.tasks",
    "transduce.training.train",
    "typer._adapters",
]


class Forked(subprocess.Popen[AnyStr], Generic[AnyStr]):
    """subprocess.Popen, forked where that is possible.

    `terminal`: standard input is the terminal of its session; with `start_new_session`. `largest`:
    the bytes of the largest file it may write.
    """

    _end: int | None = None  # a pipe from which its number and its end are read

    def __init__(
        self, args: list[str], terminal: bool = False, largest: int = 0, **others: Any
    ) -> None:
        self._special = {"terminal": terminal, "largest": largest}
        super().__init__(args, **others)

    def _execute_child(self, *given: Any) -> None:
        bound = signature(subprocess.Popen._execute_child).bind(self, *given)  # type: ignore[attr-defined]
        asked = bound.arguments
        words = [os.fspath(word) for word in asked["args"]]
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        if not can_fork(words, environment) or asked["preexec_fn"] or asked["pass_fds"]:
            if any(self._special.values()):
                asked["preexec_fn"] = self._prepare
            super()._execute_child(*bound.args[1:])  # type: ignore[misc]
            return
        request = {
            "words": words[1:],
            "environment": environment,
            "folder": os.fspath(asked["cwd"] or Path.cwd()),
            "session": asked["start_new_session"],
            **self._special,
        }
        given_streams = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
        streams = [own if own != -1 else n for n, own in enumerate(given_streams)]
        self._end, reported = os.pipe()
        socket.send_fds(_server(), [json.dumps(request).encode()], [*streams, reported])
        os.close(reported)
        self.pid = int(self._read())
        self._child_created = True
        pairs = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pairs))  # type: ignore[attr-defined]

    def _prepare(self) -> None:
        """In a process that is started."""
        if self._special["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        if largest := self._special["largest"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    def _read(self) -> bytes:
        line = b""
        assert self._end is not None
        while not line.endswith(b"\n"):
            one = os.read(self._end, 1)
            if not one:
                raise ChildProcessError("the fork server is gone")
            line += one
        return line

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._end is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        patience = 0 if wait_flags & os.WNOHANG else None
        if not select.select([self._end], [], [], patience)[0]:
            return 0, 0
        status = int(self._read())
        os.close(self._end)
        return self.pid, status

    def _internal_poll(self, *given: Any, **others: Any) -> int | None:
        if self._end is None:
            return super()._internal_poll(*given, **others)  # type: ignore[misc, no-any-return]
        if self.returncode is None:
            process, status = self._try_wait(os.WNOHANG)
            if process:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def can_fork(words: list[str], environment: dict[str, str]) -> bool:
    """Whether a fork finds what the program would find when it is started."""
    if sys.platform != "linux" or words[0] != sys.executable:
        return False
    if words[1].startswith("-") and words[1] not in ("-m", "-c"):
        return False
    return _settings(environment) == _settings(ENVIRONMENT)


def _settings(environment: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_START) and name not in OTHERS
    }


@cache
def _server() -> socket.socket:
    """The other end of the server, which ends when this one is closed or its process is gone."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, str(TESTS / "fork_server.py"), str(theirs.fileno()), *LOADED],
            stdin=subprocess.DEVNULL,
            env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)},
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait(timeout=200)

    atexit.register(end)
    return ours


def load(*modules: str) -> None:
    """Modules that several programs to come need: each would take its time for them."""
    if sys.platform == "linux":
        socket.send_fds(_server(), [json.dumps({"modules": modules}).encode()], [])


def run(
    args: list[str], text: bool = True, timeout: float = 200, **others: Any
) -> subprocess.CompletedProcess[Any]:
    """subprocess.run, forked; with what it says on both streams unless told otherwise."""
    others = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **others}
    with Forked[Any](args, text=text, **others) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(args, process.returncode, out, err)
