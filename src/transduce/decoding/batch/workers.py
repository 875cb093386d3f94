"""Several processes with one thread each search together: on a CPU more than one with them all.

A step of search is many small products; threads that share each of them wait for one another more
than they work. Processes are forked, so that they have the model already and nothing is sent to
them; what they find comes back through pipes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

LEAST = 32  # requests for each process; fewer are done before a fork has paid

Found = list[Any]
"""What is found for each request of a share, as JSON can say it."""


def shares(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Places dealt out from the largest on, so that all have about as much to do."""
    order = sorted(range(len(sizes)), key=lambda place: (-sizes[place], place))
    return [order[worker::workers] for worker in range(workers)]


def worth_it(requests: int, workers: int) -> bool:
    """Whether there is enough to share, and forking is safe: no thread may ever have been started.

    A process that has lost the threads it is used to waits for them for ever. The command line sees
    to it that torch has one thread where it asks for workers.
    """
    alone = hasattr(os, "fork") and os.environ.get("OMP_NUM_THREADS") == "1"
    return alone and workers > 1 and requests >= LEAST * workers


def together(dealt: list[list[int]], work: Callable[[list[int]], Found]) -> list[Found]:
    """work(places) of every share; the first here, the others in processes of their own.

    A share whose process is lost, for whatever reason, is done here: what is wrong then shows.
    """
    started = [_start(places, work) for places in dealt[1:]]
    try:
        found = [work(dealt[0])]
        for places in dealt[1:]:
            answer = _answer(*started.pop(0))
            found.append(work(places) if answer is None else answer)
    finally:
        for process, pipe in started:  # only after an error: nobody will read what they find
            os.kill(process, signal.SIGKILL)
            _answer(process, pipe)
    return found


def _start(places: list[int], work: Callable[[list[int]], Found]) -> tuple[int, int]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    status = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(work(places)).encode())
        status = 0
    finally:
        os._exit(status)  # nothing of the parent's is closed, flushed or reported twice


def _answer(process: int, pipe: int) -> Found | None:
    with os.fdopen(pipe, "rb") as reading:
        said = reading.read()
    _, status = os.waitpid(process, 0)
    return json.loads(said) if status == 0 else None
