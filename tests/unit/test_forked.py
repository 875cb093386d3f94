"""Programs that are forked are as programs that are started: what they find, do and leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forked import ENVIRONMENT, Forked, can_fork, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")

FINDS = """
import json, os, signal, sys, threading
streams = [sys.stdin, sys.stdout, sys.stderr]
print(json.dumps({
    "argv": sys.argv,
    "path": sys.path[0],
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "name": __name__,
    "main": sys.modules["__main__"] is sys.modules[__name__],
    "flags": list(sys.flags),
    "streams": [[s.name, s.encoding, s.errors, s.line_buffering, s.write_through] for s in streams],
    "kept": sys.stdout is sys.__stdout__,
    "signals": [str(signal.getsignal(n)).split(" at ")[0] for n in sorted(signal.valid_signals())],
    "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    # On ARM, torch leaves files of /sys open that it has read the kind of the CPU from.
    "files": len([f for f in os.listdir("/proc/self/fd")
                  if not os.path.realpath("/proc/self/fd/" + f).startswith("/sys/")]),
    "threads": len(os.listdir("/proc/self/task")),
    "group": os.getpgrp(),
    "umask": os.umask(0o022),
    "input": sys.stdin.read(),
}))
"""


def started_and_forked(words: list[str], **more: Any) -> list[Any]:
    found = []
    for kind in (subprocess.Popen, Forked):
        pipe = subprocess.PIPE
        process: Any = kind(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **more)
        out, err = process.communicate("tea", timeout=200)
        found.append((process.returncode, out, err))
    return found


@pytest.mark.parametrize("way", ["-c", "script"])
def test_it_finds_the_same(tmp_path: Path, way: str) -> None:
    script = tmp_path / "finds.py"
    script.write_text(FINDS)
    program = ["-c", FINDS] if way == "-c" else [str(script)]
    environment = {**ENVIRONMENT, "TRANSDUCE_DATA": "here"}
    environment.pop("HOME", None)
    started, forked = started_and_forked(
        [sys.executable, *program, "a", "--b"], cwd=tmp_path, env=environment
    )
    assert forked[0] == started[0] == 0, forked[2]
    assert json.loads(forked[1]) == json.loads(started[1])


@pytest.mark.parametrize(
    "does",
    [
        "sys.exit(3)",
        "sys.exit('no tea')",
        "sys.exit()",
        "os.kill(os.getpid(), 9)",
        "print('x' * 10, end='')",
        "threading.Timer(0.1, lambda: print('later')).start()",
        "atexit.register(lambda: print('at the end'))",
        "os.close(1); print('x')",
        "signal.raise_signal(signal.SIGTERM)",
    ],
)
def test_it_ends_the_same(does: str) -> None:
    code = f"import atexit, os, signal, sys, threading; {does}"
    started, forked = started_and_forked([sys.executable, "-c", code], env=ENVIRONMENT)
    assert forked[:2] == started[:2]
    assert bool(forked[2]) == bool(started[2])


@pytest.mark.parametrize("does", ["raise KeyboardInterrupt", "raise ValueError('no tea')"])
def test_what_was_not_caught(does: str) -> None:
    started, forked = started_and_forked([sys.executable, "-c", does], env=ENVIRONMENT)
    assert forked[0] == started[0]
    assert forked[2].splitlines()[-1] == started[2].splitlines()[-1]


def test_torch_is_there_and_no_two_programs_draw_the_same() -> None:
    code = "import sys; assert 'torch' in sys.modules; import random, numpy, torch; "
    code += "assert torch.get_num_threads() == 1; "
    code += (
        "print(random.random(), numpy.random.rand(), torch.initial_seed(), torch.rand(1).item())"
    )
    one, other = (run([sys.executable, "-c", code], env=ENVIRONMENT) for _ in range(2))
    assert len(one.stdout.split()) == 4, one.stderr
    assert not set(one.stdout.split()) & set(other.stdout.split())


def test_signals_timeouts_and_several_at_once() -> None:
    code = "import time; print('there', flush=True); time.sleep(100)"
    words, pipe = [sys.executable, "-c", code], subprocess.PIPE
    several = [Forked[str](words, stdout=pipe, text=True, env=ENVIRONMENT) for _ in range(2)]
    asked = [signal.SIGTERM, signal.SIGKILL]
    for process in several:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
    for process, one in zip(several, asked, strict=True):
        process.send_signal(one)
        assert process.wait(timeout=100) == -one
        assert process.poll() == -one
        process.communicate()


@pytest.mark.parametrize("threads", ["1", "2"])  # of OpenMP: with two it is started, not forked
def test_a_terminal_and_a_limit(tmp_path: Path, threads: str) -> None:
    code = "import os, sys; print(sys.stdin.isatty(), os.tcgetpgrp(0) == os.getpid(), flush=True); "
    code += "open('much', 'wb', buffering=0).write(bytes(2000))"
    terminal, end = os.openpty()
    process = Forked[str](
        [sys.executable, "-c", code],
        stdin=end,
        stdout=subprocess.PIPE,
        start_new_session=True,
        terminal=True,
        largest=1000,
        text=True,
        cwd=tmp_path,
        env={**ENVIRONMENT, "OMP_NUM_THREADS": threads},
    )
    os.close(end)
    assert process.communicate(timeout=100)[0] == "True True\n"
    os.close(terminal)
    assert (tmp_path / "much").stat().st_size == 1000


def test_settings_that_are_read_at_the_start_need_a_start() -> None:
    words = [sys.executable, "-c", "pass"]
    assert can_fork(words, ENVIRONMENT)
    for name in ("PYTHONPATH", "TRANSDUCE_DATA", "TORCHINDUCTOR_CACHE_DIR"):
        assert can_fork(words, {**ENVIRONMENT, name: "x"})
    for name in ("OMP_NUM_THREADS", "PYTHONUTF8", "LC_ALL", "PYTHONHASHSEED"):
        assert not can_fork(words, {**ENVIRONMENT, name: "2"})
    assert not can_fork([sys.executable, "-O", "-c", "pass"], ENVIRONMENT)
    assert not can_fork(["python3", "-c", "pass"], ENVIRONMENT)


def test_the_server_and_its_programs_end_with_the_tests() -> None:
    """Also where those are killed."""
    code = (
        "import forked, sys, time; from forked import ENVIRONMENT, Forked; forked.LOADED.clear(); "
        "p = Forked([sys.executable, '-c', 'import time; time.sleep(100)'], env=ENVIRONMENT); "
        "print(p.pid, open(f'/proc/{p.pid}/stat').read().split()[3], flush=True); time.sleep(100)"
    )
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(sys.path)}
    tests = subprocess.Popen([sys.executable, "-c", code], stdout=-1, text=True, env=environment)
    assert tests.stdout is not None
    numbers = [int(number) for number in tests.stdout.readline().split()]
    tests.kill()
    tests.communicate()
    deadline = time.monotonic() + 100
    while any(Path(f"/proc/{number}/cmdline").exists() for number in numbers):
        assert time.monotonic() < deadline, numbers
        time.sleep(0.05)
