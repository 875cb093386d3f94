"""The processes of one run, forked from a server that has everything imported.

It is how torchrun would have started them, only sooner.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
# What a run imports at once or later: a process that comes from the server imports nothing.
FORKS.set_forkserver_preload(
    [
        "transduce.cli.main",
        "transduce.training",
        "torch._dynamo",
        "torch.distributed.fsdp",
        "torch.utils.tensorboard",
        "jiwer",
        __name__,
    ]
)


class Group:
    """The processes of a run, started together."""

    def __init__(self, folder: Path, count: int, arguments: list[str], seconds: float) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.told = [folder.with_name(f"{folder.name}-{rank}.txt") for rank in range(count)]
        self.processes: list[BaseProcess] = [
            FORKS.Process(target=work, args=(rank, count, port, arguments, told, seconds))
            for rank, told in enumerate(self.told)
        ]
        for process in self.processes:
            process.start()

    def end(self, seconds: float = 120) -> list[int | None]:
        deadline = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(deadline - time.monotonic(), 0))
        codes = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        return codes

    def said(self, rank: int) -> str:
        return self.told[rank].read_text("utf-8") if self.told[rank].exists() else ""

    def wait_for(self, word: str) -> None:
        deadline = time.monotonic() + 120
        while True:
            alive = self.processes[0].is_alive()  # before what it said last is read
            if word in self.said(0):
                return
            assert alive, self.said(0)
            assert time.monotonic() < deadline, self.said(0)
            time.sleep(0.01)


def work(
    rank: int, count: int, port: int, arguments: list[str], told: Path, seconds: float
) -> None:
    """One process, as torchrun would start it."""
    import torch

    from transduce.cli import main as cli
    from transduce.training.distributed import processes as ranks

    torch.set_num_threads(1)
    output = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count}
    for name, value in {**place, "RANK": rank, "LOCAL_RANK": rank}.items():
        os.environ[name] = str(value)
    ranks.TIMEOUT = timedelta(seconds=seconds)
    sys.argv = ["transduce", *arguments]
    cli.main()
