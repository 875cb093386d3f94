"""Has some modules loaded, and forks programs that need them; `forked.py` starts it.

Nothing is computed here: a fork has no thread but its own, and finds what a new Python would find
after its imports. A request has the words after `python`, the environment, the folder and the three
standard streams; when the program begins, all of these are as if it had been started. Its number
and later its end go into a pipe of its own.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import termios
import threading
import traceback
import weakref
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TextIO

from disk import do_not_wait

REPLACED: list[TextIO] = []  # an object that is dropped closes its stream


def serve(control: socket.socket) -> None:
    """Fork a program for each request, until the other side is gone; then end what still runs."""
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    ends: dict[int, int] = {}
    try:
        while True:
            select.select([control, woken], [], [])
            _drain(woken)
            for process in list(ends):
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    _tell(ends.pop(process), status)
            if select.select([control], [], [], 0)[0]:
                message, streams, *_ = socket.recv_fds(control, 1 << 20, 4)
                if not message:
                    return
                request = json.loads(message)
                if "modules" in request:
                    load(request["modules"])
                    continue
                child = os.fork()
                if child == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for other in (woken, wake, control.fileno(), *ends.values()):
                        os.close(other)
                    control.detach()
                    become(request, streams)
                ends[child] = streams.pop()
                os.write(ends[child], f"{child}\n".encode())
                for stream in streams:
                    os.close(stream)
    finally:
        for process in ends:
            os.kill(process, signal.SIGKILL)


def load(modules: list[str]) -> None:
    gc.disable()
    for name in modules:
        with suppress(ImportError):  # of a package that is not installed
            import_module(name)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch takes its operators to pieces
    gc.enable()
    gc.freeze()  # a fork that looked through all this would have to copy it


def _drain(pipe: int) -> None:
    with suppress(BlockingIOError):
        while os.read(pipe, 1024):
            pass


def _tell(pipe: int, status: int) -> None:
    with suppress(BrokenPipeError):  # nobody wants to know
        os.write(pipe, f"{status}\n".encode())
    os.close(pipe)


def become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """In the fork: be the program from its start to its end."""
    if request["session"]:
        os.setsid()
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    if request["terminal"]:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if largest := request["largest"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _open_standard_streams()
    # Each new Python has other seeds; the module random sees to it by itself.
    if "torch" in sys.modules:
        sys.modules["numpy"].random.seed()
        sys.modules["torch"].default_generator.seed()
    status = 0
    try:
        run(request["words"])
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        status = 1
    # As an exit does it, but for taking every module of torch to pieces, which takes a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except (OSError, ValueError):
        traceback.print_exc()
        status = 120
    os._exit(status & 0xFF)


def run(words: list[str]) -> None:
    """As `python WORDS`."""
    kind, rest = words[0], words[1:]
    if kind == "-m":
        sys.path[0] = os.getcwd()  # noqa: PTH109
        sys.argv = ["-m", *rest[1:]]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), vars(sys.modules["__main__"]))
    else:
        sys.path[0] = str(Path(kind).parent)
        sys.argv = words
        runpy.run_path(kind, run_name="__main__")


def _open_standard_streams() -> None:
    """The standard streams of Python, made anew: to a terminal they write line by line."""
    unbuffered = bool(getattr(sys.stdout, "write_through", False))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before: io.TextIOWrapper = getattr(sys, name)
        REPLACED.append(before)
        binary: Any = open(  # noqa: SIM115
            number,
            "wb" if number else "rb",
            buffering=0 if unbuffered and number else -1,
            closefd=False,
        )
        getattr(binary, "raw", binary).name = f"<{name}>"
        made = io.TextIOWrapper(
            binary,
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=not unbuffered and (number == 2 or os.isatty(number)),
            write_through=unbuffered,
        )
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    load(sys.argv[2:])
    do_not_wait()
    sys.path.append(sys.path[0])  # a program has another in its place
    serve(control)


if __name__ == "__main__":
    main()
