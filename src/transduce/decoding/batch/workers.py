"""Decoding with several worker processes of one thread each, on a CPU.

This is faster than one process with several threads: a step of search is many small products, and
threads that share each of them mostly wait for one another. Workers are forked, so they have the
model already; results come back through pipes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

MIN_REQUESTS = 32  # requests for each process; fewer are done before a fork has paid

Found = list[Any]
"""The results for each request of a share, as JSON values."""


def shares(sizes: Sequence[int], workers: int) -> list[list[int]]:
    """Distribute indices by size, largest first, so that all workers have similar loads."""
    order = sorted(range(len(sizes)), key=lambda place: (-sizes[place], place))
    return [order[worker::workers] for worker in range(workers)]


def worth_forking(requests: int, workers: int) -> bool:
    """Whether there are enough requests, and forking is safe: no OpenMP thread may be running.

    A forked process would wait forever for threads that it does not have. The command line sets
    OMP_NUM_THREADS=1 where it uses workers.
    """
    alone = hasattr(os, "fork") and os.environ.get("OMP_NUM_THREADS") == "1"
    return alone and workers > 1 and requests >= MIN_REQUESTS * workers


def run_in_workers(dealt: list[list[int]], work: Callable[[list[int]], Found]) -> list[Found]:
    """work(places) for every share: the first in this process, the others in workers.

    The share of a worker that dies is done in this process, so that its error is reported.
    """
    started = [_start(places, work) for places in dealt[1:]]
    try:
        found = [work(dealt[0])]
        for places in dealt[1:]:
            answer = _answer(*started.pop(0))
            found.append(work(places) if answer is None else answer)
    finally:
        for process, pipe in started:  # only after an error: their results are not needed
            os.kill(process, signal.SIGKILL)
            _answer(process, pipe)
    return found


@contextmanager
def forking() -> Iterator[None]:
    """Python 3.12 warns of any fork while torch has threads; ours start anew in the child."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)
        yield


def _start(places: list[int], work: Callable[[list[int]], Found]) -> tuple[int, int]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    with forking():
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
        answer = reading.read()
    _, status = os.waitpid(process, 0)
    return json.loads(answer) if status == 0 else None
