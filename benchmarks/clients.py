"""Clients of `transduce serve` for serve_load.py. Without torch, as there are processes of them:

    python benchmarks/clients.py PORT BODIES CLIENTS START END

sends the lines of a file over and over until a time, and prints how many answers came between two
times (of time.monotonic, which all processes share), how many were not 200, and its CPU time.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path


@dataclass
class Answer:
    status: int
    """0: the connection was refused; -1: it was lost after the request had been sent."""
    seconds: float


class Client:
    """A client with one connection, which costs little CPU time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def ask(self, body: bytes) -> Answer:
        start = time.perf_counter()
        try:
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return Answer(0, time.perf_counter() - start)
        assert self.reader is not None
        try:
            head = b"POST /api/run HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n"
            head %= len(body)
            self.writer.write(head + body)
            top = await self.reader.readuntil(b"\r\n\r\n")
            lines = top.lower().split(b"\r\n")
            length = next(int(one[16:]) for one in lines if one.startswith(b"content-length: "))
            await self.reader.readexactly(length)
            if b"connection: close" in lines:
                self.close()
            return Answer(int(top[9:12]), time.perf_counter() - start)
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return Answer(-1, time.perf_counter() - start)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


async def closed_loop(
    port: int, bodies: Iterable[bytes], clients: int
) -> tuple[list[Answer], float]:
    """Each client sends its next request when it has its answer."""
    left, answers = iter(bodies), []

    async def work() -> None:
        client = Client(port)
        for body in left:
            answers.append(await client.ask(body))
            if answers[-1].status == 0:
                return
        client.close()

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(clients)))
    return answers, time.perf_counter() - start


async def open_loop(port: int, bodies: list[bytes], rate: float, seconds: float) -> list[Answer]:
    """Requests at a given rate, whether or not earlier ones have been answered."""

    async def one(number: int, delay: float) -> Answer:
        await asyncio.sleep(delay)
        client = Client(port)
        answer = await client.ask(bodies[number % len(bodies)])
        client.close()
        return answer

    count = int(rate * seconds)
    return await asyncio.gather(*(one(number, number / rate) for number in range(count)))


class Load:
    """Clients in processes of their own, each of which sends its next request when it has its
    answer."""

    def __init__(self, port: int, bodies: Path, clients: int, processes: int) -> None:
        self.port, self.bodies = port, bodies
        processes = min(processes, clients)
        self.shares = [
            clients // processes + (place < clients % processes) for place in range(processes)
        ]

    def start(self, warm: float, seconds: float) -> Window:
        """Begin to send; what counts is what comes in so many seconds, after those to warm up."""
        start = time.monotonic() + warm
        command = [sys.executable, __file__, str(self.port), str(self.bodies)]
        return Window(
            start,
            start + seconds,
            [
                subprocess.Popen(
                    [*command, str(share), str(start), str(start + seconds)],
                    stdout=subprocess.PIPE,
                )
                for share in self.shares
            ],
        )


@dataclass
class Window:
    """The time in which answers count."""

    start: float
    end: float
    processes: list[subprocess.Popen[bytes]]

    def answers(self) -> tuple[int, int, float]:
        """How many came, how many of them were not 200, and the CPU time of the clients."""
        found = [json.loads(one.communicate()[0]) for one in self.processes]
        counts, wrong, seconds = zip(*found, strict=True)
        return sum(counts), sum(wrong), sum(seconds)


async def _until(port: int, bodies: list[bytes], clients: int, start: float, end: float) -> None:
    counted, wrong, cpu, left = 0, 0, 0.0, cycle(bodies)

    async def work() -> None:
        nonlocal counted, wrong, cpu
        client = Client(port)
        while (now := time.monotonic()) < end:
            cpu = cpu if cpu or now < start else time.process_time()
            answer = await client.ask(next(left))
            if start <= time.monotonic() < end:
                counted += 1
                wrong += answer.status != 200
        client.close()

    await asyncio.gather(*(work() for _ in range(clients)))
    print(json.dumps([counted, wrong, time.process_time() - cpu]))


def main() -> None:
    port, bodies, clients, start, end = sys.argv[1:]
    lines = Path(bodies).read_bytes().splitlines()
    asyncio.run(_until(int(port), lines, int(clients), float(start), float(end)))


if __name__ == "__main__":
    main()
