"""Cases run through the command line: in forked processes, which see signals and hangs."""

from __future__ import annotations

import io
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import run
from fuzz_cases import make_case

SECONDS = 10.0  # of work that a case may take
PATIENCE = 90.0  # seconds of waiting for it, on a machine that is busy with other things
MEMORY = 3 << 30  # bytes that cases may take on top of what is there
ENDS = (0, 1, 2)  # as documented: done, something was odd, one sentence


@dataclass(frozen=True)
class Failure:
    number: int
    what: str
    reported: str = ""

    def __str__(self) -> str:
        return f"case {self.number}: {self.what}\n{self.reported}"


def run_cases(numbers: range, world: Path) -> tuple[list[Failure], dict[str, int], float]:
    """What failed, how many of each kind there were, and the most work that one took."""
    failures, counts, slowest = list[Failure](), dict[str, int](), 0.0
    for found in _all_found(numbers, world):
        if "failed" in found:
            failures.append(Failure(found["number"], found["failed"], found.get("told", "")))
        kind = found.get("kind", "lost")
        counts[kind] = counts.get(kind, 0) + 1
        slowest = max(slowest, found.get("seconds", 0.0))
    return failures, counts, slowest


def _all_found(numbers: range, world: Path) -> list[dict[str, Any]]:
    """By a process that has one thread: forks of one whose OpenMP threads have run hang."""
    command = [sys.executable, __file__, str(numbers.start), str(numbers.stop), str(world)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    done = run(command, stderr=None, env=environment, timeout=1e6)
    assert done.returncode == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    first, last, world = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    left = list(range(first, last))
    while left:
        for found in _one_process(left, world):
            left.remove(found["number"])
            print(json.dumps(found), flush=True)


def _one_process(numbers: list[int], world: Path) -> list[dict[str, Any]]:
    """What a process found of the cases that it did before it ended, or was ended."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            os.close(reading)
            _work(numbers, world, writing)
        finally:
            os._exit(0)
    os.close(writing)
    found: list[dict[str, Any]] = []
    hung = False
    with os.fdopen(reading, "rb") as pipe:
        rest = b""
        while not hung:
            ready, _, _ = select.select([pipe], [], [], PATIENCE)
            hung = not ready
            chunk = os.read(pipe.fileno(), 1 << 16) if ready else b""
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            found += map(json.loads, lines)
    if hung:
        os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    if len(found) < len(numbers):
        why = "it did not end" if hung else f"signal {os.WTERMSIG(status)}, status {status}"
        found.append({"number": numbers[len(found)], "failed": why})
    return found


def _work(numbers: list[int], world: Path, pipe: int) -> None:
    import transduce.hardware

    transduce.hardware.keep_loaded = lambda: None  # it is for a process that loads once
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(quiet, number)
    for number in numbers:
        os.write(pipe, json.dumps(run_case(number, world)).encode() + b"\n")


def run_case(number: int, world: Path) -> dict[str, Any]:
    """One case in this process: how it ended, and what it took."""
    from transduce.cli import main as cli

    scratch = Path(tempfile.mkdtemp(dir=world.parent))
    before = os.getcwd()  # noqa: PTH109
    found: dict[str, Any] = {"number": number}
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    kept = sys.argv, sys.stdin, sys.stdout, sys.stderr
    start = time.process_time()
    try:
        case = make_case(number, world, scratch)
        found["kind"] = case.kind
        os.chdir(scratch)
        sys.argv = ["transduce", *case.arguments]
        sys.stdin = io.TextIOWrapper(io.BytesIO(case.stdin))
        sys.stdout, sys.stderr = out, err
        start = time.process_time()
        cli.main()
    except SystemExit as end:
        err.flush()
        reported = err.buffer.getvalue().decode("utf-8", "replace")
        if end.code not in ENDS:
            found |= {"failed": f"status {end.code} of {case.arguments}", "told": reported[-2000:]}
        elif "Traceback" in reported or (end.code == 2 and "transduce: " not in reported):
            found |= {"failed": f"no sentence of {case.arguments}", "told": reported[-2000:]}
        elif "\x1b" in reported:
            found |= {
                "failed": f"an escape sequence of {case.arguments}",
                "told": repr(reported[-2000:]),
            }
    except BaseException as error:
        reported = "".join(traceback.format_exception(error))[-3000:]
        found |= {"failed": f"{type(error).__name__} of {case.arguments}", "told": reported}
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = kept
        os.chdir(before)
        shutil.rmtree(scratch, ignore_errors=True)
    found["seconds"] = time.process_time() - start
    if found["seconds"] > SECONDS and "failed" not in found:
        found["failed"] = f"{found['seconds']:.1f} s of work for {case.arguments}"
    return found


if __name__ == "__main__":
    main()
