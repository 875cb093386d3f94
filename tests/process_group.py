"""The processes of one run, forked from a server that has everything imported.

It is how torchrun would have started them, only sooner.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from forked import Forked


class Group:
    """The processes of a run, started together."""

    def __init__(
        self,
        folder: Path,
        count: int,
        arguments: list[str],
        of_rank: dict[int, list[str]] | None = None,
        program: tuple[str, str] = ("-m", "transduce"),
    ) -> None:
        """of_rank: further arguments of single ranks."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.reported = [folder.with_name(f"{folder.name}-{rank}.txt") for rank in range(count)]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count}
        self.processes: list[Forked[bytes]] = []
        for rank, reported in enumerate(self.reported):
            own = [*arguments, *(of_rank or {}).get(rank, [])]
            with reported.open("wb") as output:
                process = Forked[bytes](
                    [sys.executable, *program, *own],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment({**place, "RANK": rank, "LOCAL_RANK": rank}),
                )
            self.processes.append(process)

    def end(self, seconds: float = 120) -> list[int | None]:
        deadline = time.monotonic() + seconds
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
        codes = [process.poll() for process in self.processes]
        for process in self.processes:
            process.kill()
            process.wait()
        return codes

    def said(self, rank: int) -> str:
        return self.reported[rank].read_text("utf-8") if self.reported[rank].exists() else ""

    def wait_for(self, word: str) -> None:
        deadline = time.monotonic() + 120
        while True:
            alive = self.processes[0].poll() is None  # before what it said last is read
            if word in self.said(0):
                return
            assert alive, self.said(0)
            assert time.monotonic() < deadline, self.said(0)
            time.sleep(0.01)


def environment(more: dict[str, object]) -> dict[str, str]:
    own = {"OMP_NUM_THREADS": 1, "PYTHONPATH": os.pathsep.join(sys.path), **more}
    return {**os.environ, **{name: str(value) for name, value in own.items()}}
